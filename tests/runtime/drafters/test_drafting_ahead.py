"""Tests of drafting ahead: it gives the later draft, as far as the text goes that way."""

from __future__ import annotations

import random

import numpy as np
import pytest
from candidates import Trusting
from pairs import ENGINES

from edgespec.runtime.drafters import ModelCalls, ModelDrafter, NoDrafter, TreeBudget
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions
from edgespec.runtime.trees.walk import Verdict

VOCABULARY = 331
NOTHING = Verdict((), (1,))


@pytest.fixture(params=ENGINES)
def drafter(request, pairs):
    """A drafter whose calibration always returns the prior."""
    model = pairs.llm("llama", request.param, "model")._loaded["draft"].model
    return lambda: ModelDrafter(ModelCalls(Runner(model)), Trusting())


@pytest.mark.parametrize("options", [SamplingOptions(), SamplingOptions(3.0, seed=1)], ids=str)
def test_what_was_drafted_ahead_is_what_would_have_been_drafted(drafter, options):
    """Wherever the text continues along nodes that were run, the next draft is ready."""
    budget, rng, arrived = TreeBudget(8, 4, 3), random.Random(2), 0
    for start in range(1, 40):
        text, working = list(range(start, start + 5)), drafter()
        working.begin(text, Sampler(options, VOCABULARY))
        for _ in range(3):
            tree = working.draft(text, budget).tree()
            for _ in range(rng.randrange(8)):
                working.draft_ahead()
            nodes = [node for level in working._levels for node in level]
            end = rng.choice(nodes)
            working.observe(Verdict((), tuple(end.branch())), tree, np.zeros((9, VOCABULARY)))
            text += end.branch()
            proposal = working.draft(text, budget)
            assert proposal.begun is end.ran
            assert working.fed == [] if end.ran else sum(working.fed) >= 1
            arrived += end.ran
            fresh = drafter()
            fresh.begin(text, Sampler(options, VOCABULARY))
            expected = values(fresh.draft(text, budget))
            found = values(proposal)
            assert sum(found.values()) > sum(expected.values()) - 1e-3
            for branch in found.keys() & expected.keys():
                assert found[branch] == pytest.approx(expected[branch], rel=1e-2, abs=1e-5)
            assert len(found.keys() & expected.keys()) > len(expected) / 2
            working.observe(NOTHING, proposal.tree(), np.zeros((9, VOCABULARY)))
            text.append(1)
    assert arrived > 20


def values(proposal):
    tree = proposal.tree()
    return {
        tuple(tree.tokens[tree.path(node)].tolist()): proposal.values[node]
        for node in range(len(tree))
    }


def test_work_ahead_ends_with_what_is_likely(drafter):
    working = drafter()
    assert not NoDrafter().draft_ahead()
    working.begin([1, 2, 3], Sampler(SamplingOptions(), VOCABULARY))
    working.draft([1, 2, 3], TreeBudget(4, 2, 2))
    steps = 0
    while working.draft_ahead():
        steps += 1
    assert 1 <= steps <= 128
    assert len(working._levels) > 2  # deeper than what was proposed


def test_work_ahead_stays_inside_the_drafts_context(pairs):
    llm = pairs.llm("stranger", ENGINES[0], "model")
    working = ModelDrafter(ModelCalls(Runner(llm._loaded["draft"].model)), Trusting())
    text = [1 + n % 300 for n in range(97)]  # the draft knows 100 positions
    working.begin(text, Sampler(SamplingOptions(), VOCABULARY))
    working.draft(text, TreeBudget(8, 8, 4))
    while working.draft_ahead():
        pass
    assert max(node.depth for level in working._levels for node in level if node.ran) <= 3
