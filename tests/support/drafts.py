"""All draft sources with sizes to test them in, and what holds for every text."""

from __future__ import annotations

import pytest
from pairs import ENGINES

# Draft tokens and tree width; only trees of a draft model have a width.
SIZES = {
    "none": [(7, 4)],
    "model": [(0, 1), (1, 4), (3, 1), (3, 2), (7, 1), (7, 4), (16, 2), (16, 4)],
    "parallel": [(0, 4), (1, 1), (3, 2), (7, 1), (7, 4), (16, 4)],
    "lookup": [(0, 4), (1, 4), (3, 4), (7, 4), (16, 4)],
    "recycling": [(0, 4), (1, 1), (3, 2), (7, 4), (16, 4)],
    "auto": [(0, 4), (1, 4), (7, 1), (7, 4), (31, 4)],
}
engines = pytest.mark.parametrize("engine", ENGINES)


def adds_up(result):
    """Check that each round gives its accepted tokens and one more."""
    assert result.new_tokens == len(result.tokens)
    assert result.accepted + result.rounds + 1 == result.new_tokens
    assert result.drafted >= result.accepted
    if result.rounds:
        mean = (result.new_tokens - 1) / result.rounds
        assert result.mean_accepted_length == pytest.approx(mean, abs=1e-3)
    return True
