"""Tests of parallel drafts: mask rows against transformers, trees against brute force, calls."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from candidates import Trusting, candidates_of
from drafts import CANDIDATES, GREEDY, NO_LOGITS, OPTIONS, VOCABULARY, branches, few
from hypothesis import given
from hypothesis import strategies as st
from pairs import ENGINES, LONG_PROMPT, MASK, NEW_TOKENS, logits_of
from parity import made

from edgespec import LLM, bundle
from edgespec.errors import DeviceError, InputError
from edgespec.export import ExportOptions, export_bundle
from edgespec.runtime.deployment.options import LoadOptions
from edgespec.runtime.deployment.resolve import resolve
from edgespec.runtime.drafters import ModelCalls, ModelDrafter, ParallelDrafter, TreeBudget
from edgespec.runtime.drafters.parallel import best_nodes
from edgespec.runtime.drafters.ranking import rank
from edgespec.runtime.engines import engine
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.steps import finished
from edgespec.runtime.planning import priced
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.shapes import PARALLEL_ROWS, PARALLEL_TOKENS
from edgespec.runtime.trees.tree import ROOT
from edgespec.runtime.trees.walk import Verdict

prompts = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=30)


@pytest.fixture(scope="module", params=ENGINES)
def draft_model(request, pairs):
    return pairs.llm("llama", request.param, "parallel")._loaded["draft"].model


def parallel(calls):
    return ParallelDrafter(calls, Trusting(), MASK)


# Rows


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("llama", {}),
        ("qwen2", {}),
        ("gemma2", {"sliding_window": 8}),  # whose logits have a limit
        ("mistral", {"sliding_window": 8}),
        ("gemma3_text", {"sliding_window": 8, "sliding_window_pattern": 2}),
    ],
)
def test_mask_rows_are_transformers_own(tmp_path, architecture, fields):
    """Wherever the call begins; the masks see the text and the masks before them."""
    reference = made(tmp_path / "model", architecture, pard_token=MASK, **fields)
    source = tmp_path / "model"
    export_bundle(source, tmp_path / "bundle", source, ExportOptions("fp32"))
    loaded = bundle.load(tmp_path / "bundle")
    assert loaded.draft.mask_token == MASK
    for device in ENGINES:
        calls = ModelCalls(Runner(Model.load(loaded, "draft", engine(device), 1)))
        text = np.random.default_rng(3).integers(1, MASK, 40).tolist()
        calls.begin(text, Sampler(GREEDY, VOCABULARY))
        for end, masks in ((5, 7), (6, 3), (14, 0), (14, 7), (23, 7), (40, 2)):
            found = finished(calls.look_ahead(text[:end], [MASK] * masks))
            expected = logits_of(reference, text[:end] + [MASK] * masks)[end - 1 :]
            assert found.logits.shape == (masks + 1, CANDIDATES)
            rows = np.take_along_axis(expected, found.tokens, axis=1)
            np.testing.assert_allclose(found.logits, rows, atol=1e-4)
            np.testing.assert_allclose(
                found.normalizers, np.logaddexp.reduce(expected, axis=1), atol=1e-4
            )
            best = -np.sort(-expected, axis=1)[:, :CANDIDATES]
            np.testing.assert_allclose(found.logits, best, atol=1e-4)
            assert calls._runner.tokens == text[:end]  # no masks


# Trees


def by_brute_force(values, most):
    """The values of the best nodes of the tree of all combinations, the best first."""
    nodes = [
        math.prod(row[place] for row, place in zip(values, places, strict=False))
        for depth in range(1, len(values) + 1)
        for places in product(*(range(len(row)) for row in values[:depth]))
    ]
    return sorted((value for value in nodes if value > 0), reverse=True)[:most]


shares = st.floats(0, 1).map(lambda share: round(share, 2))
siblings = st.lists(shares, min_size=1, max_size=3).map(lambda row: sorted(row, reverse=True))


@given(st.lists(siblings, min_size=1, max_size=4), st.integers(0, 60))
def test_nodes_are_the_best_of_all_combinations(values, most):
    nodes = list(best_nodes(values, most))
    assert [node.value for node in nodes] == pytest.approx(by_brute_force(values, most))
    places = set()
    for number, node in enumerate(nodes):
        assert node.parent < number
        above = nodes[node.parent] if node.parent != ROOT else None
        assert node.depth == (0 if above is None else above.depth + 1)
        before = 1.0 if above is None else above.value
        assert node.value == before * values[node.depth][node.place]
        places.add((node.parent, node.place))
    assert len(places) == len(nodes)


def test_nodes_end_where_they_are_worth_too_little():
    values = [[0.5, 0.25], [0.5, 0.25]]
    assert [node.value for node in best_nodes(values, 9, 0.12)] == [0.5, 0.25, 0.25, 0.125, 0.125]
    assert [node.value for node in best_nodes(values, 9, 0.25)] == [0.5]


@pytest.mark.slow
@given(
    prompts,
    st.sampled_from(OPTIONS),
    st.builds(TreeBudget, st.integers(1, 12), st.integers(1, 4), st.integers(1, 4)),
)
@few
def test_the_tree_is_the_best_by_what_transformers_says(draft_model, pairs, text, options, budget):
    """Under the noise of each position, and with the penalty for what the text repeats."""
    sampler = Sampler(options, VOCABULARY)
    drafter = parallel(ModelCalls(Runner(draft_model)))
    drafter.begin(text, sampler)
    proposal = drafter.draft(text, budget)
    positions = min(budget.max_depth, budget.max_nodes)
    masks = [MASK] * (positions - 1)
    rows = logits_of(pairs.pair("llama").draft, text + masks)[len(text) - 1 :]
    rankings = [
        rank(sampler, candidates_of(row, CANDIDATES), len(text) + n, [text], budget.width)[0]
        for n, row in enumerate(rows)
    ]
    by_token = [dict(zip(*ranking, strict=True)) for ranking in rankings]
    expected = by_brute_force([ranking.values for ranking in rankings], budget.max_nodes)
    # A child that is sure leaves nothing to its siblings, whose tiny values rounding decides.
    found, expected = (
        [value for value in sorted(values, reverse=True) if value > 1e-5]
        for values in (proposal.values, expected)
    )
    assert found == pytest.approx(expected, rel=2e-3, abs=2e-6)
    for branch, value in zip(branches(proposal), proposal.values, strict=True):
        edges = [by_token[depth][token] for depth, token in enumerate(branch)]
        assert value == pytest.approx(math.prod(edges), rel=2e-3, abs=2e-6)
    assert set(proposal.sources) == {"parallel"}


def test_what_was_counted_of_a_position_orders_its_candidates(draft_model):
    """And siblings are worth their parent at most, however often each was right."""

    class Sure(Trusting):
        def acceptance(self, cell, prior):
            return 0.7

    drafter = ParallelDrafter(ModelCalls(Runner(draft_model)), Sure(), MASK)
    drafter.begin([1, 2], Sampler(GREEDY, VOCABULARY))
    proposal = drafter.draft([1, 2, 3], TreeBudget(31, 2, 4))
    assert proposal.values == pytest.approx([0.7, 0.49, 0.3, 0.21, 0.21, 0.09])


def test_candidates_are_counted_as_far_as_the_text_followed_them(draft_model):
    class Counting(Trusting):
        def observe(self, cell, accepted):
            seen.append(accepted)

    seen: list[bool] = []
    drafter = ParallelDrafter(ModelCalls(Runner(draft_model)), Counting(), MASK)
    drafter.begin([1, 2], Sampler(GREEDY, VOCABULARY))
    tree = drafter.draft([1, 2, 3], TreeBudget(7, 4, 2)).tree()
    first, second = ([edge.token for edge in edges] for edges in drafter._edges[:2])
    other = next(token for token in range(VOCABULARY) if token not in second)
    drafter.observe(Verdict((), (first[1], other, 5)), tree, NO_LOGITS)
    assert seen == [False, True, False, False]


# Calls


@pytest.mark.parametrize("draft", ["parallel", "auto"])
@pytest.mark.parametrize("fields", [{}, {"temperature": 2.5, "seed": 3}], ids=str)
def test_a_round_takes_one_call_of_the_draft(pairs, monkeypatch, draft, fields):
    monkeypatch.setattr(priced, "_TRY_ANYWAY", 10.0)  # however slow a call is at the moment
    llm = pairs.llm("llama", ENGINES[0], draft)
    run, calls = Runner._run, []

    def counted(self, rows, stages, hidden=None):
        if self.model is llm._loaded["draft"].model:
            calls.append((len(rows.tokens), rows.last_only))
        return run(self, rows, stages, hidden)

    monkeypatch.setattr(Runner, "_run", counted)
    result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, **fields)
    if draft == "parallel":
        chunks = [rows for rows, last_only in calls if last_only]
        assert sum(chunks) == result.prompt_tokens  # and the pending token begins the first call
        assert result.sources == {"parallel": len(calls) - len(chunks), "none": 1}  # the last token
    assert result.accepted > 0
    # No call returns more rows than memory was planned for.
    assert max(rows for rows, last_only in calls if not last_only) <= PARALLEL_ROWS


def test_a_long_unread_end_is_read_in_chunks_before(draft_model):
    drafter, text = parallel(ModelCalls(Runner(draft_model))), [1 + n % 300 for n in range(200)]
    drafter.begin(text, Sampler(GREEDY, VOCABULARY))
    chunk = draft_model.sizes.prefill_chunk
    for unread, fed, rows in (
        (129, [chunk] * (128 // chunk), 8), (9, [], 16), (10, [9], 8), (1, [], 8), (0, [], 8)
    ):  # fmt: skip
        end = drafter._calls._runner.length + unread
        assert sum(drafter.unread(text[:end])) == unread
        proposal = drafter.draft(text[:end], TreeBudget(8, 8, 1))
        assert max(proposal.tree().depths) == PARALLEL_TOKENS
        assert (drafter.fed, drafter.levels) == (fed, [rows])
        assert drafter._calls._runner.tokens == text[:end]


@st.composite
def rounds(draw):
    """By whom to draft in each round, how often ahead, and how much of what is right."""
    budgets = st.builds(TreeBudget, st.integers(0, 9), st.integers(0, 4), st.integers(1, 3))
    one = st.tuples(st.booleans(), budgets, st.integers(0, 2), st.floats(0, 1), st.integers(1, 20))
    return draw(st.lists(one, min_size=1, max_size=6))


@given(prompts, st.sampled_from(OPTIONS), rounds())
@few
def test_two_ways_to_draft_share_one_cache(draft_model, text, options, played):
    """After any rounds each drafts as one that begins there."""
    sampler, budget, calls = Sampler(options, VOCABULARY), TreeBudget(9, 4, 3), draft_model
    calls = ModelCalls(Runner(draft_model))
    both = (parallel(calls), ModelDrafter(calls, Trusting()))
    for drafter in both:
        drafter.begin(text[:-1], sampler)
    for by_levels, limits, ahead, place, extra in played:
        drafter = both[by_levels]
        tree = drafter.draft(text, limits).tree()
        for _ in range(ahead):
            drafter.draft_ahead()
        path = tree.path(round(place * (len(tree) - 1))) if len(tree) else []
        tokens = (*tree.tokens[path].tolist(), extra)
        drafter.observe(Verdict(tuple(path), tokens), tree, NO_LOGITS)
        text = [*text, *tokens]
        assert calls._runner.tokens == text[: calls._runner.length]
    for number in (0, 1):
        fresh = (parallel, lambda own: ModelDrafter(own, Trusting()))[number](
            ModelCalls(Runner(draft_model))
        )
        fresh.begin(text[:-1], sampler)
        found, expected = both[number].draft(text, budget), fresh.draft(text, budget)
        if not found.begun:  # else it goes on with what was drafted ahead
            assert branches(found) == branches(expected)
            np.testing.assert_allclose(found.values, expected.values, rtol=2e-3)
        assert calls._runner.tokens == text
        text = [*text, 7]


def test_behind_texts_longer_than_its_context_it_sees_a_window(pairs):
    """The model knows 100 positions, and predicts none behind them."""
    model = pairs.llm("stranger", ENGINES[0], "model")._loaded["draft"].model
    drafter, text = parallel(ModelCalls(Runner(model))), [1 + n % 300 for n in range(95)]
    drafter.begin(text, Sampler(GREEDY, VOCABULARY))
    depths = []
    while len(text) < 152:
        proposal = drafter.draft(text, TreeBudget(9, 4, 3))
        depths.append(max(proposal.tree().depths))
        fresh, first = parallel(ModelCalls(Runner(model))), 50 * max(0, (len(text) - 50) // 50)
        fresh.begin(text[first:-1], Sampler(GREEDY, VOCABULARY))
        assert branches(proposal) == branches(fresh.draft(text[first:], TreeBudget(9, 4, 3)))
        text.append(7)
    assert depths[:9] == [4, 4, 3, 2, 1, 4, 4, 4, 4]


def test_positions_that_add_little_get_no_masks_but_one(draft_model):
    drafter = parallel(ModelCalls(Runner(draft_model)))
    drafter.begin([1, 2], Sampler(GREEDY, VOCABULARY))
    drafter.draft([1, 2, 3], TreeBudget(8, 8, 4))
    for least, rows in ((0.0, 8), (0.05, 5), (0.3, 3), (0.6, 2), (1.0, 1)):
        drafter._gains = [0.9, 0.5, 0.25, 0.1, 0.02, 0.01, 0.005, 0.0]
        drafter.draft([1, 2, 3], TreeBudget(8, 8, 4, least_gain=least))
        assert drafter.levels == [rows]
    before = drafter._gains[0]
    drafter.draft([1, 2, 3], TreeBudget(8, 8, 4))
    assert drafter._gains[0] != before


@pytest.mark.parametrize("budget", [TreeBudget(0, 4, 4), TreeBudget(7, 0, 4)], ids=str)
def test_no_budget_no_call(draft_model, budget):
    drafter = parallel(ModelCalls(Runner(draft_model)))
    drafter.begin([1], Sampler(GREEDY, VOCABULARY))
    assert len(drafter.draft([1, 2], budget)) == 0
    assert (drafter.fed, drafter.levels, drafter.draft_ahead()) == ([], [], False)


@pytest.mark.parametrize("draft", ["parallel", "auto"])
def test_a_draft_device_that_is_lost_costs_no_token(pairs, monkeypatch, caplog, draft):
    llm = pairs.llm("llama", ENGINES[0], draft)
    expected = pairs.greedy("llama")

    def lost(*_):
        yield from ()
        raise DeviceError("device lost")

    monkeypatch.setattr(priced, "_TRY_ANYWAY", 10.0)  # however slow a call is at the moment
    with monkeypatch.context() as patch:
        patch.setattr(ModelCalls, "look_ahead", lost)
        assert llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS).tokens == expected
    [warning] = caplog.records
    assert warning.message == "device lost: the text goes on without drafts by parallel"
    result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS)  # the next text tries again
    assert (result.tokens, result.accepted > 0) == (expected, True)


# Options


def test_what_is_needed_is_said_where_it_is_missing(pairs):
    with pytest.raises(InputError, match=r"no draft model .* has a pard_token, or use --draft"):
        LLM(pairs.pair("stranger").path, draft="parallel")
    with pytest.raises(InputError, match=r"offers none, model, lookup, recycling$"):
        pairs.llm("stranger", ENGINES[0], "model").stream("x", draft_source="parallel")


def test_each_text_may_choose_how_to_draft(pairs):
    llm = pairs.llm("llama", ENGINES[0], "model")
    assert "parallel" in llm.draft_sources
    result = llm.generate(LONG_PROMPT, max_new_tokens=NEW_TOKENS, draft_source="parallel")
    assert result.tokens == pairs.greedy("llama")
    assert result.sources.keys() == {"parallel", "none"}


def test_a_bundle_says_whether_its_draft_has_a_mask_token(pairs, cli):
    """And one that has none is what it was before there were any."""
    for name, has in (("llama", True), ("stranger", False)):
        path = pairs.pair(name).path
        assert ("331, mask 330" in cli("inspect", path).out) == has
        assert ("mask_token" in (path / "manifest.json").read_text()) == has


def test_rows_of_a_call_with_masks_are_planned_for(pairs):
    for name, rows in (("llama", PARALLEL_ROWS), ("stranger", 4)):
        loaded = bundle.load(pairs.pair(name).path)
        assert resolve(loaded, LoadOptions(draft="auto")).width == rows
