"""Tests of drafts from a prediction: how long they are, and how many rounds a text takes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edgespec.runtime.curve import Curve
from edgespec.runtime.drafters import (
    LookupDrafter,
    NoDrafter,
    PredictedDrafter,
    Prediction,
    PredictionDrafter,
    TreeBudget,
)
from edgespec.runtime.drafters.acceptance import Calibration
from edgespec.runtime.planning import PlannedDrafter, PricedRetriever
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions
from edgespec.runtime.trees.walk import walk

VOCABULARY = 331
PROMPT = [1, 2, 3]
TEXT = [random.Random(1).randrange(10, 300) for _ in range(640)]
NO_LOGITS = np.zeros((128, VOCABULARY), np.float32)
FLAT = {256: {1: 1.0, 8: 1.2, 32: 1.6, 64: 2.0}}
STEEP = {256: {1: 1.0, 8: 8.0, 32: 32.0, 64: 64.0}}


def planned(prediction, verify):
    source = PredictionDrafter(Prediction(prediction), Calibration())
    return PlannedDrafter([[PricedRetriever(source, free=True)]], Curve(verify))


def alone(prediction, other=None):
    source = PredictionDrafter(Prediction(prediction), Calibration())
    return PredictedDrafter(source, other or NoDrafter())


def rounds_of(drafter, text, nodes):
    """Nodes and accepted ones of each round in which a target writes this text."""
    drafter.begin(PROMPT, Sampler(SamplingOptions(), VOCABULARY))
    whole, done, rounds = [*PROMPT, *text], len(PROMPT) + 1, []
    while done < len(whole):
        budget = TreeBudget(nodes, min(nodes, len(whole) - done - 1), 4)
        proposal = drafter.draft(whole[:done], budget)
        assert len(proposal) <= nodes
        tree = proposal.tree()
        verdict = walk(tree, lambda _, branch: whole[done + len(branch)], frozenset())  # noqa: B023
        drafter.observe(verdict, tree, NO_LOGITS)
        rounds.append((len(tree), len(verdict.nodes)))
        done += len(verdict.tokens)
    return rounds


def test_a_perfect_prediction_fills_the_longest_calls(clock):
    rounds = rounds_of(planned(TEXT, FLAT), TEXT, 63)
    assert len(rounds) <= len(TEXT) / 64 + 2  # the first drafts are shorter
    assert all(accepted == nodes for nodes, accepted in rounds)


def test_the_first_draft_begins_with_the_second_predicted_token(clock):
    drafter = planned(TEXT, FLAT)
    drafter.begin(PROMPT, Sampler(SamplingOptions(), VOCABULARY))
    proposal = drafter.draft([*PROMPT, TEXT[0]], TreeBudget(63, 63, 4))
    assert len(proposal) >= 3
    assert proposal.tokens == TEXT[1 : 1 + len(proposal)]
    assert proposal.source == "prediction"


def test_a_wrong_first_token_is_no_obstacle(clock):
    drafter = planned(TEXT, FLAT)
    drafter.begin(PROMPT, Sampler(SamplingOptions(), VOCABULARY))
    proposal = drafter.draft([*PROMPT, 9, TEXT[0]], TreeBudget(63, 63, 4))
    assert proposal.tokens == TEXT[1 : 1 + len(proposal)]
    assert len(proposal) >= 2


def test_where_rows_are_dear_nothing_is_drafted(clock):
    rounds = rounds_of(planned(TEXT, STEEP), TEXT, 63)
    assert all(nodes == 0 for nodes, _ in rounds[:20])


def test_edits_cost_a_round_or_two_each(clock):
    edited = [token for place, token in enumerate(TEXT) if place % 128 != 70]  # five left out
    few = len(rounds_of(planned(TEXT, FLAT), edited, 63))
    assert few <= len(TEXT) / 64 + 2 + 2 * 5


def test_a_renaming_costs_little_however_often_it_occurs(clock):
    name, others = 5, [random.Random(2).randrange(10, 300) for _ in range(600)]
    old = [
        token
        for place, each in enumerate(others)
        for token in ([each, name] if place % 15 == 0 else [each])
    ]
    new = [token for each in old for token in ([7, 8] if each == name else [each])]
    rounds = len(rounds_of(planned(old, FLAT), new, 63))
    assert rounds <= len(new) / 64 + 10  # of 40 places


def test_a_wrong_prediction_is_drafted_from_no_more(clock):
    """A few tokens in common tempt, but not for long."""
    wrong = [random.Random(3).randrange(10, 300) for _ in range(640)]
    rounds = rounds_of(planned(wrong, FLAT), TEXT, 63)
    assert sum(nodes for nodes, _ in rounds[-200:]) < 200


@pytest.mark.parametrize("nodes", [1, 7, 15, 63])
def test_with_a_fixed_size_each_draft_has_it(nodes):
    rounds = rounds_of(alone(TEXT), TEXT, nodes)
    assert len(rounds) == -(-(len(TEXT) - 1) // (nodes + 1))


def test_another_drafter_is_asked_where_nothing_was_predicted():
    period = [5, 6, 7, 8, 9] * 40
    text = [*period, *TEXT[:60]]
    rounds = rounds_of(alone(TEXT[:60], LookupDrafter(Calibration())), text, 7)
    assert len(rounds) < 50
    assert len(rounds_of(alone(TEXT[:60]), text, 7)) > 200


@pytest.mark.parametrize("nodes", [1, 7, 31])
def test_two_ways_on_share_the_nodes(nodes):
    """One nearby, behind one token in common, and one far away, behind three."""
    near, between = [303, *range(110, 160)], [301, 302, 9, *TEXT[:60]]
    drafter = alone([5, 6, *near, *between, 301, 302, 303, *range(10, 60)])
    drafter.begin(PROMPT, Sampler(SamplingOptions(), VOCABULARY))
    text = [*PROMPT, 5, 6, 9, 301, 302, 303]
    proposal = drafter.draft(text, TreeBudget(nodes, nodes, 4))
    assert len(proposal) == nodes
    ways = {
        token for token, parent in zip(proposal.tokens, proposal.parents, strict=True) if parent < 0
    }
    assert ways <= {10, 110}
    assert nodes == 1 or len(ways) == 2


def test_no_budget_no_tree():
    drafter = alone(TEXT)
    drafter.begin(PROMPT, Sampler(SamplingOptions(), VOCABULARY))
    for budget in (TreeBudget(0, 4, 4), TreeBudget(7, 0, 4)):
        assert len(drafter.draft([*PROMPT, TEXT[0]], budget)) == 0
