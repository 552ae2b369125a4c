"""What a head promises before it is exported."""

from __future__ import annotations

import pytest

from edgespec.training.promise import call_seconds, promised_speedup
from edgespec.training.shape import CONCAT, GATED, HeadShape


def flat(rows):
    """A pass takes a second, however many rows it has."""
    return 1.0


def steep(rows):
    """Each further row costs as much as the first."""
    return float(rows)


def test_free_drafts_give_all_that_is_accepted():
    assert promised_speedup((0.5, 0.5), flat, 0.0) == pytest.approx(1 + 0.5 + 0.25)
    assert promised_speedup((1.0,) * 4, flat, 0.0) == pytest.approx(5)


def test_the_best_length_is_promised():
    # A chain of one: 1.9 tokens in 1.5 s; of two: 1.99 in 2 s; none: 1 in 1 s.
    assert promised_speedup((0.9, 0.1), flat, 0.5) == pytest.approx(1.9 / 1.5)
    assert promised_speedup((0.1, 0.9), flat, 0.5) == 1.0
    assert promised_speedup((0.9, 0.9), steep, 0.0) == 1.0
    assert promised_speedup((), flat, 0.1) == 1.0


def test_a_call_takes_what_its_weights_take():
    sizes = {
        "hidden": 8, "intermediate": 16, "heads": 2, "kv_heads": 1, "head_dim": 4,
        "taps": (1, 2), "vocabulary": 100, "draft_vocabulary": 10, "eps": 1e-6, "theta": 1e4,
        "context": 64,
    }  # fmt: skip
    both = HeadShape(**sizes, fusion=CONCAT)
    # fc, attention over both rows, MLP, output projection
    assert both.parameters == 16 * 8 + (16 * 16 + 8 * 8) + 3 * 8 * 16 + 10 * 8
    gated = HeadShape(**sizes, fusion=GATED)
    assert gated.parameters == 16 * 8 + (8 * 16 + 8 * 8) + 16 * 8 + 3 * 8 * 16 + 10 * 8
    assert call_seconds(both, 10 * both.parameters, flat) == pytest.approx(0.1)
