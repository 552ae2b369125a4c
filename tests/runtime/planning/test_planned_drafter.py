"""Tests of the planner with real draft sources."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from pairs import ENGINES, LONG_PROMPT, MASK, NEW_TOKENS

from edgespec.runtime.curve import Curve
from edgespec.runtime.deployment.options import FIXED_DRAFT_TOKENS
from edgespec.runtime.deployment.throughput import USUAL_ACCEPTANCE, Pair, plain
from edgespec.runtime.drafters import (
    LookupDrafter,
    ModelCalls,
    ModelDrafter,
    ParallelDrafter,
    RecyclingDrafter,
    TreeBudget,
)
from edgespec.runtime.drafters.acceptance import Calibration
from edgespec.runtime.drafters.successors import Successors
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.planning import (
    PlannedDrafter,
    PricedModel,
    PricedParallel,
    PricedRetriever,
    priced,
)
from edgespec.runtime.planning.priced import Prospect
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions
from edgespec.runtime.trees.tree import TokenTree
from edgespec.runtime.trees.walk import Verdict

VOCABULARY = 331
FLAT = {256: {1: 1.0, 8: 1.2, 32: 1.6}}
STEEP = {256: {1: 1.0, 8: 8.0, 32: 32.0}}
BUDGET = TreeBudget(31, 31, 4)
REPEATING = [5, 6, 7, 8, 9, 10] * 6
NO_LOGITS = np.zeros((128, VOCABULARY), np.float32)


def usual_rate(verify, call):
    """Tokens per second with drafts of the usual length and acceptance."""
    return Pair(verify, call, FIXED_DRAFT_TOKENS).serial(USUAL_ACCEPTANCE)


def drafter_of(text, verify, *models, grammar=None):
    lookup = LookupDrafter(Calibration())
    recycling = RecyclingDrafter(Successors(VOCABULARY), Calibration())
    sources = [[PricedRetriever(lookup)], [PricedRetriever(recycling)], models]
    drafter = PlannedDrafter(sources, Curve(verify), grammar=grammar)
    drafter.begin(text[:-1], Sampler(SamplingOptions(), VOCABULARY))
    return drafter


def test_a_repetition_is_looked_up_as_far_as_it_pays(clock):
    long = drafter_of(REPEATING, FLAT).draft(REPEATING, BUDGET)
    assert long.source == "lookup"
    assert len(long) > 7
    assert long.tokens[:6] == [5, 6, 7, 8, 9, 10]
    assert len(drafter_of(REPEATING, STEEP).draft(REPEATING, BUDGET)) == 0


def test_the_forecast_is_the_trees_and_the_curves(clock):
    proposal = drafter_of(REPEATING, FLAT).draft(REPEATING, BUDGET)
    assert proposal.forecast.tokens == pytest.approx(1 + sum(proposal.values))
    expected = Curve(FLAT).seconds(len(proposal) + 1, 256)
    assert proposal.forecast.seconds == pytest.approx(expected)


class GrammarMatcher:
    """Forces some tokens, and forbids others."""

    def __init__(self, forced=(), forbidden=()):
        self._forced, self._forbidden = list(forced), forbidden

    def forced(self):
        return self._forced

    def valid(self, tokens):
        return next((n for n, each in enumerate(tokens) if each in self._forbidden), len(tokens))


def test_what_a_grammar_forces_is_part_of_the_plan(clock):
    text = [1, 2, 3]
    proposal = drafter_of(text, FLAT, grammar=GrammarMatcher(range(20, 27))).draft(text, BUDGET)
    assert (proposal.tokens, proposal.source) == (list(range(20, 27)), "grammar")
    assert proposal.forecast.tokens == pytest.approx(1 + sum(proposal.values))
    assert proposal.forecast.tokens > 6


def test_what_a_grammar_forbids_is_no_part_of_the_plan(clock):
    free = drafter_of(REPEATING, FLAT).draft(REPEATING, BUDGET)
    for forbidden, left in (({5}, 0), ({8}, 3)):
        matcher = GrammarMatcher(forbidden=forbidden)
        proposal = drafter_of(REPEATING, FLAT, grammar=matcher).draft(REPEATING, BUDGET)
        assert proposal.tokens == free.tokens[:left]
        assert proposal.forecast.tokens == pytest.approx(1 + sum(free.values[:left]))
        assert proposal.forecast.seconds == Curve(FLAT).seconds(left + 1, 256)


def test_without_anything_to_draft_it_decodes_plainly(clock):
    text = [1, 2, 3]
    proposal = drafter_of(text, FLAT).draft(text, BUDGET)
    assert (len(proposal), proposal.source) == (0, "none")
    assert proposal.forecast.tokens == 1


def test_what_passes_take_corrects_what_they_are_expected_to(clock):
    drafter, text = drafter_of([1, 2], FLAT), [1, 2]
    for token in range(3, 40):
        proposal = drafter.draft(text, BUDGET)
        clock.now += 2.5
        drafter.observe(Verdict((), (token,)), proposal.tree(), NO_LOGITS)
        text.append(token)
    assert drafter.draft(text, BUDGET).forecast.seconds == pytest.approx(2.5, rel=0.05)


def test_no_budget_no_draft(clock):
    for budget in (TreeBudget(0, 31, 4), TreeBudget(31, 0, 4)):
        assert len(drafter_of(REPEATING, FLAT).draft(REPEATING, budget)) == 0


@pytest.fixture
def timed(pairs, clock):
    """A draft model with given costs of calls."""

    def make(seconds, of_32_rows=0.0):
        model = pairs.llm("twin", ENGINES[0], "model")._loaded["draft"].model
        curve = Curve({256: {1: seconds, 32: max(seconds, of_32_rows)}})
        return PricedModel(ModelDrafter(ModelCalls(Runner(model)), Calibration()), curve)

    return make


def test_a_cheap_draft_model_is_asked_and_a_dear_one_only_now_and_then(timed, clock):
    text = list(range(1, 30))
    for seconds, wanted in ((0.01, 1.0), (50.0, 0.3)):
        model = timed(seconds)
        drafter, asked = drafter_of(text, FLAT, model), 0
        so_far = text.copy()
        for token in itertools.islice(itertools.cycle(range(1, 300, 7)), 40):
            proposal = drafter.draft(so_far, BUDGET)
            asked += model.asked
            clock.now += 1.0
            drafter.observe(Verdict((), (token,)), proposal.tree(), NO_LOGITS)
            so_far.append(token)
        assert asked / 40 <= wanted
        assert asked >= (30 if seconds < 1 else 1)


@pytest.mark.parametrize(
    ("calls", "better"), [({1: 0.3, 16: 0.31}, "parallel"), ({1: 0.01, 4: 0.01, 9: 9.0}, "model")]
)
def test_levels_or_masks_whichever_pays_more(pairs, clock, monkeypatch, calls, better):
    """Two real ways to draft, with one cache, and calls that take what is given."""
    run, takes = Runner._run, Curve({256: calls})

    def slow(self, rows, *fields, **options):
        clock.now += takes.seconds(len(rows.tokens), 256)
        return run(self, rows, *fields, **options)

    model = pairs.llm("llama", ENGINES[0], "model")._loaded["draft"].model
    shared, curve = ModelCalls(Runner(model)), Curve({256: calls})
    ways = (
        PricedModel(ModelDrafter(shared, Calibration()), curve),
        PricedParallel(ParallelDrafter(shared, Calibration(), MASK), curve),
    )
    monkeypatch.setattr(Runner, "_run", slow)
    text = list(range(1, 30))
    drafter, asked = drafter_of(text, FLAT, *ways), []
    for token in range(1, 51):
        tree = drafter.draft(text, BUDGET).tree()
        asked.append(next((way._drafter.name for way in ways if way.asked), "none"))
        clock.now += Curve(FLAT).seconds(len(tree) + 1, 256)
        path = tree.path(int(tree.depths.argmax())) if len(tree) else []
        verdict = Verdict(tuple(path), (*tree.tokens[path].tolist(), token))
        drafter.observe(verdict, tree, NO_LOGITS)
        text = [*text, *verdict.tokens]
    assert asked[:6] == ["model"] * 3 + ["parallel"] * 3
    assert asked[6:].count(better) > 30


def test_behind_texts_longer_than_it_sees_a_draft_models_calls_cost_no_more(timed):
    by_capacity = Curve({256: {1: 1.0, 4: 2.0, 128: 2.0}, 1024: {1: 4.0, 4: 8.0, 128: 8.0}})
    drafter = timed(1.0)._drafter
    text, budget, slow_pass = [1] * 256, TreeBudget(8, 4, 4), lambda rows: 100.0
    for context, level in ((4096, 8.0), (200, 2.0)):
        model = PricedModel(drafter, by_capacity, context=context)
        assert model.level_seconds(budget, 1024) == pytest.approx(level)
        reading = level * len(drafter.unread(text)) - level / 2
        left = reading / (1 - plain(slow_pass) / usual_rate(slow_pass, level / 2))
        for share, pays in ((0.99, False), (1.01, True)):
            prospect = Prospect(1.0, share * left, 0, slow_pass, 1024)
            assert model.wanted(text, prospect) == pays


def test_of_alternatives_the_best_is_asked_and_one_at_a_time(timed, clock):
    """Each is tried first; then the cheaper of two that draft the same is asked."""
    dear, cheap = timed(0.8), timed(0.01)
    text = list(range(1, 30))
    drafter, asked = drafter_of(text, FLAT, dear, cheap), []
    for token in itertools.islice(itertools.cycle(range(1, 300, 7)), 20):
        proposal = drafter.draft(text, BUDGET)
        asked.append((dear.asked, cheap.asked))
        clock.now += 1.0
        drafter.observe(Verdict((), (token,)), proposal.tree(), NO_LOGITS)
        text = [*text, token]
    assert asked[:6] == [(True, False)] * 3 + [(False, True)] * 3
    assert (True, True) not in asked
    assert asked[6:].count((False, True)) > 8 * asked[6:].count((True, False))


@pytest.mark.parametrize(
    ("seconds", "pays"),
    [
        (0.1, True),  # drafts with the usual acceptance save part of the time
        (1.8, False),  # they save nothing: only a long text is worth a try
    ],
)
def test_a_prompt_is_read_by_a_draft_model_where_the_text_is_long_enough_to_pay_for_it(
    timed, clock, monkeypatch, seconds, pays
):
    monkeypatch.setattr(priced, "_TRY_ANYWAY", 0.03)
    text = list(range(1, 30))
    saved = 1 - 0.5 / usual_rate(lambda rows: 2.0, seconds)
    assert (saved > 0.03) == pays
    least = (4.0 - seconds) / max(saved, 0.03) / 2.0  # tokens of 2 s whose saving pays for reading
    for share, wanted in ((0.9, False), (1.1, True)):
        model = timed(seconds, of_32_rows=4.0)  # the prompt takes one call; a pass takes 2
        drafter = drafter_of(text, {256: {1: 2.0}}, model)
        drafter.draft(text, replace(BUDGET, remaining=share * least))
        assert model.asked == wanted
    drafter.observe(Verdict((), (1,)), TokenTree.chain(()), NO_LOGITS)
    drafter.draft([*text, 1], replace(BUDGET, remaining=1))
    assert model.asked  # a draft begins with a call anyway


def test_a_text_of_all_sources_is_the_text(pairs):
    """Whatever trees are combined; the statistics are those of the rounds."""
    llm = pairs.llm("llama", ENGINES[0], "auto")
    plain = pairs.llm("llama", ENGINES[0], "none")
    for fields in ({}, {"temperature": 2.5, "seed": 4}):
        expected = plain.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields)
        stream = llm.stream(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields)
        for _ in stream:
            pass
        result = stream.result
        assert result.tokens == expected.tokens
        assert result.draft == "auto"
        assert sum(result.sources.values()) == result.rounds == len(stream.rounds)
        assert sum(step.drafted for step in stream.rounds) == result.drafted
        assert all(1 <= step.forecast.tokens <= 1 + step.drafted for step in stream.rounds)
        if result.rounds > 10:
            assert result.predicted_tokens_per_second > 0
            assert result.measured_tokens_per_second > 0
    assert expected.sources == {"none": expected.rounds}
    assert expected.predicted_tokens_per_second is None
