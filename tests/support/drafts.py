"""All draft sources with sizes to test them in, and what holds for every text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from pairs import ENGINES

from edgespec.runtime.sampling.options import SamplingOptions

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

VOCABULARY = 331  # of the small pairs
CANDIDATES = 128  # of each row of a draft model
NO_LOGITS = np.zeros((128, VOCABULARY), np.float32)
GREEDY = SamplingOptions()
OPTIONS = [
    GREEDY,
    SamplingOptions(repetition_penalty=1.3),
    SamplingOptions(temperature=3.0, seed=1),
    SamplingOptions(temperature=2.0, top_k=9, top_p=0.9, repetition_penalty=1.2, seed=2),
]
few = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def adds_up(result):
    """Check that each round gives its accepted tokens and one more."""
    assert result.new_tokens == len(result.tokens)
    assert result.accepted + result.rounds + 1 == result.new_tokens
    assert result.drafted >= result.accepted
    if result.rounds:
        mean = (result.new_tokens - 1) / result.rounds
        assert result.mean_accepted_length == pytest.approx(mean, abs=1e-3)
    return True


def branches(proposal):
    """Returns the tokens from the root down to each node."""
    tree = proposal.tree()
    return [tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))]
