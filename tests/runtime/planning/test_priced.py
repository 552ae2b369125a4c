"""Tests of prices and forecasts, with fake sources of given cost and promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgespec.runtime.curve import Curve
from edgespec.runtime.drafters import TreeBudget
from edgespec.runtime.drafters.base import SteppingDrafter
from edgespec.runtime.execution.steps import Call, Called, finished
from edgespec.runtime.planning import (
    PlannedDrafter,
    PricedModel,
    PricedParallel,
    PricedRetriever,
)
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions
from edgespec.runtime.trees.company import Company, PassCost
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import ROOT
from edgespec.runtime.trees.walk import Verdict

PROMPT = list(range(1, 30))
BUDGET = TreeBudget(31, 8, 4)
EVEN, SLOPED = {256: {1: 1.0}}, {256: {1: 1.0, 32: 1.62}}
CALLS = {1: 0.1, 4: 0.2, 32: 9.0}  # seconds of a model's calls by rows
NO_LOGITS = np.zeros((1, 1), np.float32)


class Source:
    """A source that proposes a chain of likely tokens, as deep as allowed."""

    name = "source"

    def __init__(self, clock, first=100, takes=0.0, learns=0.0):
        self.clock, self.first, self.takes, self.learns = clock, first, takes, learns
        self.observed, self.went_ahead, self.more = 0, 0, True

    def begin(self, prompt, sampler):
        pass

    def extend(self, proposal, text, budget):
        self.budget = budget
        self.clock.now += self.takes
        node, value = ROOT, 1.0
        for depth in range(min(budget.max_depth, budget.max_nodes)):
            value *= 0.9
            node = proposal.add(node, self.first + depth, value, self.name)

    def draft_ahead(self):
        self.went_ahead += 1
        return self.more

    def observe(self, verdict, tree, logits):
        self.observed += 1
        self.clock.now += self.learns


class Model(Source):
    """The same for a draft model, with one call for each level behind the first."""

    name = "model"

    def __init__(self, clock, calls=CALLS, first=200):
        super().__init__(clock, first)
        self.calls, self.curve, self.read = calls, Curve({256: calls}), 0

    def unread(self, text):
        new = len(text) - self.read
        return [128] * (new // 128) + [new % 128] * (new % 128 > 0)

    def draft(self, text, budget):
        proposal, self.fed = Proposal(), self.unread(text)
        self.levels = [min(budget.width, budget.max_nodes)] * (budget.max_depth - 1)
        self.takes = sum(self.curve.seconds(rows, 256) for rows in (*self.fed, *self.levels))
        self.read = len(text)
        self.extend(proposal, text, budget)
        return proposal


class Parallel(Model):
    """The same for one that takes a call in all, with a row for each level behind the first."""

    name = "parallel"

    def draft(self, text, budget):
        proposal, new = Proposal(), self.unread(text)
        self.fed, rows = (new, 1) if sum(new) > 9 else ([], sum(new))
        self.levels = [rows + budget.max_depth - 1]
        self.takes = sum(self.curve.seconds(rows, 256) for rows in (*self.fed, *self.levels))
        self.read = len(text)
        self.extend(proposal, text, budget)
        return proposal


def priced_model(model):
    """The model with the true costs of its calls."""
    return PricedModel(model, Curve({256: model.calls}))


def rounds(drafter, clock, accepted, passes=EVEN, budget=BUDGET):
    """Rounds of a text, each with its duration; `accepted` nodes of each chain become text."""
    verify = Curve(passes)
    drafter.begin(PROMPT, Sampler(SamplingOptions(), 1000))
    text = [*PROMPT, 0]
    for right in accepted:
        begin = clock.now
        proposal = drafter.draft(text, budget)
        clock.now += verify.seconds(len(proposal) + 1, 256)
        nodes = tuple(range(min(right, len(proposal))))
        verdict = Verdict(nodes, (*proposal.tokens[: len(nodes)], 0))
        drafter.observe(verdict, proposal.tree(), NO_LOGITS)
        text += verdict.tokens
        yield proposal, clock.now - begin


@pytest.mark.parametrize(("takes", "learns"), [(0.0, 0.0), (0.4, 0.0), (0.0, 0.4), (0.3, 0.2)])
def test_a_forecast_is_what_rounds_take(clock, takes, learns):
    """The passes, the source, and a little time everywhere else."""
    clock.tick = 0.015
    source = PricedRetriever(Source(clock, takes=takes, learns=learns), free=True)
    drafter = PlannedDrafter([[source]], Curve(EVEN))
    for number, (proposal, took) in enumerate(rounds(drafter, clock, [4] * 20)):
        if number > 1:
            assert proposal.forecast.seconds == pytest.approx(took, rel=0.04)


def test_passes_over_a_tree_are_learned_as_those_of_its_rows(clock):
    drafter = PlannedDrafter([[PricedRetriever(Source(clock))]], Curve({256: {1: 1.0, 32: 1.1}}))
    *_, (proposal, took) = rounds(drafter, clock, [8] * 40, {256: {1: 0.3}})
    assert len(proposal) == 8  # with the pending token one row more than a bucket
    assert proposal.forecast.seconds == pytest.approx(took, rel=0.05)


@pytest.mark.parametrize("right", [0, 2, 8])
@pytest.mark.parametrize("before", [0, 8])
def test_promises_are_believed_as_they_come_true_of_late(clock, right, before):
    drafter = PlannedDrafter([[PricedRetriever(Source(clock), free=True)]], Curve(EVEN))
    *_, (proposal, _) = rounds(drafter, clock, [before] * 40 + [right] * 40)
    assert proposal.forecast.tokens == pytest.approx(1 + right, abs=0.5)


def test_to_read_the_prompt_is_a_cost_of_the_round_but_not_held_against_the_model(clock):
    model = Model(clock)
    source = priced_model(model)
    drafter = PlannedDrafter([[source]], Curve(EVEN))
    for number, (proposal, took) in enumerate(rounds(drafter, clock, [8] * 12)):
        assert proposal.forecast.seconds == pytest.approx(took)
        assert took > 9 or number
        assert source.asked


def test_what_is_paid_once_is_what_more_than_a_levels_rows_were_read(clock):
    model = Model(clock)
    source = priced_model(model)
    for new, once in ((29, 8.8), (4, 0.0), (1, 0.0), (0, 0.0)):
        model.read = 0
        finished(source.ask(Proposal(), [1] * new, BUDGET, 256))
        assert source.once == pytest.approx(once)
        assert source.seconds == pytest.approx(model.takes)


def test_of_a_call_that_also_reads_all_is_paid_again_but_what_was_read_before(clock):
    model = Parallel(clock, CALLS)
    source = PricedParallel(model, Curve({256: CALLS}))
    for new, once in ((29, 9.0), (9, 0.0), (1, 0.0)):
        model.read = 0
        finished(source.ask(Proposal(), [1] * new, BUDGET, 256))
        assert source.once == pytest.approx(once, rel=0.15)
        assert source.seconds == pytest.approx(model.takes)


def test_a_mask_costs_what_a_row_does(clock):
    source = PricedParallel(Parallel(clock), Curve({256: {1: 0.1, 16: 1.6}}))
    assert source.level_seconds(BUDGET, 256) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("calls", "better"),
    [
        ({1: 0.1, 32: 0.2}, "parallel"),  # eight levels in the time of two
        ({1: 0.1, 8: 0.1, 9: 4.0}, "model"),  # a call with all masks takes more than all levels
        ({1: 0.02, 4: 0.02, 8: 1.0}, "model"),
    ],
)
def test_of_two_ways_to_draft_by_one_model_the_cheaper_is_taken(clock, calls, better):
    """Both draft alike, so that the costs decide."""
    curve, levels, masks = Curve({256: calls}), Model(clock, calls), Parallel(clock, calls)
    sources = [PricedModel(levels, curve), PricedParallel(masks, curve)]
    drafter = PlannedDrafter([sources], Curve(EVEN))
    found = [proposal.source for proposal, _ in rounds(drafter, clock, [8] * 60)]
    assert set(found[:6]) == {"model", "parallel"}  # each is tried
    assert found[10:].count(better) > 40


def test_a_level_costs_what_its_rows_do(clock):
    source = priced_model(Model(clock))
    costs = [source.level_seconds(TreeBudget(nodes, 8, 4), 256) for nodes in (1, 4, 31)]
    assert costs == pytest.approx([0.1, 0.2, 0.2])


@pytest.mark.parametrize(
    ("probing", "given", "nodes", "depth"),
    [(False, (31, 8), 31, 8), (True, (31, 8), 3, 2), (True, (1, 8), 1, 2), (True, (31, 1), 3, 1)],
)
def test_a_probe_is_small(clock, probing, given, nodes, depth):
    model = Model(clock)
    source = priced_model(model)
    source.schedule.probing = probing
    finished(source.ask(Proposal(), PROMPT, TreeBudget(*given, 4), 256))
    assert (model.budget.max_nodes, model.budget.max_depth) == (nodes, depth)


def test_of_models_that_pay_the_best_is_asked(clock):
    slow, fast = priced_model(Model(clock, {1: 0.3})), priced_model(Model(clock, {1: 0.05}))
    drafter = PlannedDrafter([[slow, fast]], Curve(EVEN))
    asked = [(slow.asked, fast.asked) for _ in rounds(drafter, clock, [8] * 20)]
    assert asked[6:] == [(False, True)] * 14


def test_who_was_asked_learns_and_goes_ahead_and_nobody_else(clock):
    asked, other = Model(clock), Model(clock, {1: 1000.0})
    drafter = PlannedDrafter([[priced_model(asked), priced_model(other)]], Curve(EVEN))
    for number, _ in enumerate(rounds(drafter, clock, [8] * 3), 1):
        assert drafter.draft_ahead()
        assert (asked.went_ahead, asked.observed) == (number, number)
    assert (other.went_ahead, other.observed) == (0, 0)
    asked.more = False
    assert not drafter.draft_ahead()


def test_what_levels_and_nodes_must_promise_is_what_their_seconds_bring_elsewhere(clock):
    """At the recent rate, but never at less than plain decoding's."""
    free, model = Source(clock), Model(clock)
    sources = [[PricedRetriever(free, free=True)], [priced_model(model)]]
    drafter = PlannedDrafter(sources, Curve(SLOPED))
    row, seen = 0.62 / 31, []
    for proposal, _ in rounds(drafter, clock, [8] * 60 + [0] * 100, SLOPED):
        seen.append(proposal.forecast.tokens / proposal.forecast.seconds)
        if len(seen) == 1:
            assert model.budget.least_gain == pytest.approx(0.2)
            assert model.budget.least_value == pytest.approx(row)
        if len(seen) in (1, 60, 160):
            late = sum(seen[-10:]) / len(seen[-10:])
            assert free.budget.least_value == pytest.approx(max(1.0, late) * row / 2, rel=0.1)


def test_sources_together_draft_no_more_nodes_than_the_budget(clock):
    sources = [[PricedRetriever(Source(clock), free=True)], [priced_model(Model(clock))]]
    for nodes in (1, 6, 16):
        drafter, budget = PlannedDrafter(sources, Curve(EVEN)), TreeBudget(nodes, 8, 4)
        for proposal, _ in rounds(drafter, clock, [0] * 3, budget=budget):
            assert 0 < len(proposal) <= nodes
    assert proposal.source == "model+source"


def test_what_takes_microseconds_is_always_asked_and_what_loses_is_not(clock):
    free, dear = (PricedRetriever(Source(clock, takes=20.0), free=free) for free in (True, False))
    for source, always in ((free, True), (dear, False)):
        drafter = PlannedDrafter([[source]], Curve(EVEN))
        asked = [source.asked for _ in rounds(drafter, clock, [8] * 8)]
        assert asked == [True] * 3 + [always] * 5
        again = [source.asked for _ in rounds(drafter, clock, [8] * 3)]
        assert again == [True] * 3  # each text may be another matter


def test_what_calls_take_is_learned_where_the_model_makes_them(clock):
    """The model sees 200 tokens, so its calls always use a small cache."""
    model = Model(clock, {1: 0.2})
    model.read = len(PROMPT)
    source = PricedModel(model, Curve({256: {1: 0.05}, 1024: {1: 0.9}}), context=200)
    for _ in range(20):
        finished(source.ask(Proposal(), PROMPT, BUDGET, 1024))
    assert source.level_seconds(BUDGET, 1024) == pytest.approx(0.2, rel=0.05)


class Waiting(SteppingDrafter, Model):
    """The same for one whose two levels wait for calls that other texts share."""

    draft = SteppingDrafter.draft

    def drafting(self, text, budget):
        self.fed, self.levels = [], []
        proposal = Proposal()
        for _ in range(2):
            self.levels.append(4)
            self.clock.now += 0.01  # its own Python
            yield Call(None, None)
        self.takes = 0.0
        self.extend(proposal, text, budget)
        return proposal


def test_of_a_call_that_texts_share_each_pays_its_part(clock):
    source = PricedModel(Waiting(clock), Curve({256: {1: 0.2, 64: 0.4}}))
    company = Company(texts=3, drafting=3)
    for _ in range(30):
        source.start_round()
        steps = source.ask(Proposal(), PROMPT, BUDGET, 256)
        next(steps)
        for _ in range(2):
            clock.now += 0.4 + 0.3  # the call, and Python of the other texts
            try:
                steps.send(Called(PassCost(4, 16, 0.4)))
            except StopIteration:
                break
        assert source.spent == pytest.approx(2 * (0.01 + 0.4 / 4))
        assert source.idle == pytest.approx(2 * (0.3 + 0.4 * 3 / 4))
    assert source.seconds == pytest.approx(0.22, rel=0.05)
    crowded = replace(BUDGET, company=company)
    assert source.level_seconds(crowded, 256) == pytest.approx(0.11, rel=0.05)
    # What a call takes that is not shared has not been seen.
    assert source.level_seconds(BUDGET, 256) == pytest.approx(0.21, rel=0.05)
