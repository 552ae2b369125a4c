"""Draft vocabularies, and what a head promises before it is exported."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgespec.training.dflash import BlockShape
from edgespec.training.eagle3 import Eagle3Shape
from edgespec.training.promise import draft_seconds, promised_speedup
from edgespec.training.vocabulary import DraftIds, choose, expected_uses, offsets


def test_offsets_lead_from_a_drafts_ids_to_the_targets():
    ids = np.array([1, 2, 7, 30])
    shifts, proposed = offsets(ids, 40)
    assert shifts.dtype == np.int64
    assert [number + int(shift) for number, shift in enumerate(shifts)] == ids.tolist()
    assert proposed.dtype == np.bool_
    assert np.flatnonzero(proposed).tolist() == ids.tolist()
    assert len(proposed) == 40


def test_the_most_used_tokens_are_chosen_and_those_that_end_a_text():
    expected = np.zeros(20)
    expected[11] = 0.4
    assert choose([9, 9, 9, 5], expected, 4, [19]).tolist() == [5, 9, 11, 19]
    assert choose([9], np.zeros(20), 3, []).tolist() == [0, 1, 9]
    assert choose([9], np.zeros(4), 30, []).tolist() == [0, 1, 2, 3]


def test_expected_uses_add_up_to_one():
    ids = np.array([[3, 1], [3, 2]])
    uses = expected_uses(ids, np.log(np.array([[3, 1], [1, 1]], np.float32)), 5)
    assert uses == pytest.approx([0, 0.125, 0.25, 0.625, 0])


def test_labels_are_numbers_in_the_draft_vocabulary():
    draft = DraftIds(np.array([2, 5, 8]), 10, torch.device("cpu"))
    logits = torch.tensor([[4.0, 2, 1], [1, 1, 1]]).log()
    numbers, shares = draft.labels(torch.tensor([[8, 3, 2], [0, 1, 3]]), logits)
    assert numbers[0, [0, 2]].tolist() == [2, 0]
    assert shares[0].tolist() == pytest.approx([0.8, 0, 0.2])
    assert shares[1].tolist() == [0, 0, 0]


def flat(rows):
    """A pass takes a second, however many rows it has."""
    return 1.0


def steep(rows):
    """Each further row costs as much as the first."""
    return float(rows)


def test_free_drafts_give_all_that_is_accepted():
    assert promised_speedup((0.5, 0.5), flat, lambda n: 0.0) == pytest.approx(1 + 0.5 + 0.25)
    assert promised_speedup((1.0,) * 4, flat, lambda n: 0.0) == pytest.approx(5)


def test_the_best_length_is_promised():
    # A chain of one: 1.9 tokens in 1.5 s; of two: 1.99 in 2 s; none: 1 in 1 s.
    assert promised_speedup((0.9, 0.1), flat, lambda n: 0.5 * n) == pytest.approx(1.9 / 1.5)
    assert promised_speedup((0.1, 0.9), flat, lambda n: 0.5 * n) == 1.0
    assert promised_speedup((0.9, 0.9), steep, lambda n: 0.0) == 1.0
    assert promised_speedup((), flat, lambda n: 0.1 * n) == 1.0


def test_a_draft_takes_what_its_weights_take():
    sizes = {
        "hidden": 8,
        "intermediate": 16,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 4,
        "taps": (1, 2),
        "vocabulary": 100,
        "draft_vocabulary": 10,
        "eps": 1e-6,
        "theta": 1e4,
        "context": 64,
    }
    both = Eagle3Shape(**sizes)
    # fc, attention over both rows, MLP, output projection
    assert both.parameters == 16 * 8 + (16 * 16 + 8 * 8) + 3 * 8 * 16 + 10 * 8
    gated = Eagle3Shape(**sizes, gated=True)
    assert gated.parameters == 16 * 8 + (8 * 16 + 8 * 8) + 16 * 8 + 3 * 8 * 16 + 10 * 8
    block = BlockShape(**sizes, layers=2, block=5, mask_token=9, markov_rank=3)
    layer = 2 * (8 * 8 + 8 * 4) + 3 * 8 * 16
    assert block.parameters == 2 * layer + 10 * (8 + 3)
    for shape, seconds in ((both, 0.3), (block, 0.5)):  # three calls, and one of five rows
        found = draft_seconds(shape, 10 * shape.parameters, steep, 3)
        assert found == pytest.approx(seconds)
    assert draft_seconds(block, block.parameters, steep, 0) == 0
