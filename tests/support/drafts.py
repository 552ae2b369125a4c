"""What holds for every text that drafts helped to make."""

from __future__ import annotations

import pytest


def adds_up(result):
    """Check that each round gives its accepted tokens and one more."""
    assert result.new_tokens == len(result.tokens)
    assert result.accepted + result.rounds + 1 == result.new_tokens
    assert result.drafted >= result.accepted
    if result.rounds:
        mean = (result.new_tokens - 1) / result.rounds
        assert result.mean_accepted_length == pytest.approx(mean, abs=1e-3)
