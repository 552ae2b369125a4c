"""Draft sources against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from candidates import candidates_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pairs import ENGINES, logits_of

from edgespec.runtime.drafters import LookupDrafter, ModelDrafter, NoDrafter, TreeBudget, model
from edgespec.runtime.ranking import rank
from edgespec.runtime.sampling import Sampler, SamplingOptions
from edgespec.runtime.tree import ROOT
from edgespec.runtime.verify import Verdict

VOCABULARY = 331
CANDIDATES = 128
GREEDY = SamplingOptions()
OPTIONS = [
    GREEDY,
    SamplingOptions(repetition_penalty=1.3),
    SamplingOptions(temperature=3.0, seed=1),
    SamplingOptions(temperature=2.0, top_k=9, top_p=0.9, repetition_penalty=1.2, seed=2),
]
few = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
prompts = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=12)


def branches(tree):
    return [tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))]


# A draft model


@pytest.fixture(scope="module", params=ENGINES)
def draft_model(request, pairs):
    return pairs.llm("llama", request.param, "model")._draft_model


@pytest.fixture(scope="module")
def draft_rankings(pairs):
    """Children of a text by the draft's full logits, as transformers computes them."""
    made = {}

    def children(text, sampler, width):
        if text not in made:
            made[text] = logits_of(pairs.pair("llama").draft, list(text))[-1]
        if sampler.options == GREEDY:
            logits = made[text].astype(np.float64)
            shares = np.exp(logits - np.logaddexp.reduce(logits))
            best = np.argsort(-shares, kind="stable")[:width]
            return list(zip(best.tolist(), shares[best].tolist(), strict=True))
        row = candidates_of(made[text], CANDIDATES)
        [ranking] = rank(sampler, row, len(text), [text], width)
        return list(zip(ranking.tokens, ranking.values, strict=True))

    return children


def best_first(children, text, sampler, budget):
    """The tree by its definition: the best `width` nodes of each level are expanded.

    Returns:
        The value of each branch of the tree.
    """
    nodes, level = {}, {(): 1.0}
    for _ in range(budget.max_depth):
        below = {
            (*branch, token): value * edge
            for branch, value in level.items()
            for token, edge in children((*text, *branch), sampler, budget.width)
        }
        nodes |= below
        level = dict(sorted(below.items(), key=lambda item: -item[1])[: budget.width])
    return dict(sorted(nodes.items(), key=lambda item: -item[1])[: budget.max_nodes])


@given(
    prompts,
    st.sampled_from(OPTIONS),
    st.builds(TreeBudget, st.integers(1, 12), st.integers(1, 4), st.integers(1, 4)),
)
@few
def test_the_tree_is_the_best_first_tree(draft_model, draft_rankings, text, options, budget):
    sampler = Sampler(options, VOCABULARY)
    drafter = ModelDrafter(draft_model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "_LEAST_REACH", 0.0)
        drafter.begin(text, sampler)
        tree = drafter.draft(text, budget)
    expected = best_first(draft_rankings, tuple(text), sampler, budget)
    assert sorted(branches(tree)) == sorted(expected)  # a tree: no branch without its beginning
    for node, branch in zip(drafter._chosen, branches(tree), strict=True):
        assert math.isclose(node.value, expected[branch], rel_tol=2e-3, abs_tol=1e-9)
    assert len(tree) <= budget.max_nodes
    assert all(1 <= depth <= budget.max_depth for depth in tree.depths)
    for node in range(ROOT, len(tree)):
        assert len(tree.children(node)) <= budget.width


def test_a_level_that_is_hardly_reached_is_not_drafted(draft_model, draft_rankings):
    """Its calls would cost more than the few rounds in which it helps would save."""
    sampler, budget = Sampler(GREEDY, VOCABULARY), TreeBudget(30, 6, 2)
    short = 0
    for first in range(1, 30):
        text = [first]
        drafter = ModelDrafter(draft_model)
        drafter.begin(text, sampler)
        found = branches(drafter.draft(text, budget))
        full = best_first(draft_rankings, tuple(text), sampler, budget)
        assert set(found) <= set(full)
        for depth in range(1, 6):
            level = sorted((v for b, v in full.items() if len(b) == depth), reverse=True)
            if sum(level[: budget.width]) < model._LEAST_REACH - 1e-3:
                assert max(map(len, found)) <= depth
                short += 1
                break
    assert 0 < short < 29


def play(drafter, text, verdict_of, budget):
    """One round: draft, some verdict, observe."""
    tree = drafter.draft(text, budget)
    verdict = verdict_of(tree)
    drafter.observe(verdict)
    text += verdict.tokens


@st.composite
def rounds(draw):
    """What to accept: a node by its place (or none), and the target's extra token (or none)."""
    budgets = st.builds(TreeBudget, st.integers(0, 9), st.integers(0, 4), st.integers(1, 3))
    places, extra = st.one_of(st.none(), st.floats(0, 1)), st.integers(0, VOCABULARY - 1)
    return draw(st.lists(st.tuples(budgets, places, extra), min_size=1, max_size=6))


def verdict_for(place, extra):
    def verdict(tree):
        deepest_last = sorted(range(len(tree)), key=lambda node: tree.depths[node])
        if place is None or not deepest_last:
            path = []
        else:
            path = tree.path(deepest_last[round(place * (len(tree) - 1))])
        return Verdict(tuple(path), (*tree.tokens[path].tolist(), extra))

    return verdict


@given(prompts, st.sampled_from(OPTIONS), rounds())
@settings(few, max_examples=40)
def test_after_any_verdicts_the_next_tree_is_a_fresh_drafters(draft_model, text, options, played):
    """The cache holds the text and nothing else, with what was accepted but never run fed again."""
    sampler, last = Sampler(options, VOCABULARY), TreeBudget(9, 4, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "_LEAST_REACH", 0.0)
        used, fresh = ModelDrafter(draft_model), ModelDrafter(draft_model)
        used.begin(text, sampler)
        for budget, place, extra in played:
            play(used, text, verdict_for(place, extra), budget)
        tree = used.draft(text, last)
        fresh.begin(text, sampler)
        expected = fresh.draft(text, last)
    assert branches(tree) == branches(expected)
    np.testing.assert_allclose(
        [node.value for node in used._chosen], [node.value for node in fresh._chosen], rtol=2e-3
    )
    assert used._runner.length == fresh._runner.length == len(text)


def test_a_second_text_starts_afresh(draft_model):
    sampler, budget = Sampler(GREEDY, VOCABULARY), TreeBudget(9, 4, 3)
    drafter, fresh = ModelDrafter(draft_model), ModelDrafter(draft_model)
    drafter.begin([1, 2, 3], sampler)
    play(drafter, [1, 2, 3, 4], verdict_for(1.0, 5), budget)
    for used in (drafter, fresh):
        used.begin([9, 8], sampler)
    assert branches(drafter.draft([9, 8, 7], budget)) == branches(fresh.draft([9, 8, 7], budget))


def test_a_text_longer_than_the_drafts_context_has_no_draft(pairs):
    drafter = ModelDrafter(pairs.llm("stranger", ENGINES[0], "model")._draft_model)
    sampler, budget = Sampler(GREEDY, VOCABULARY), TreeBudget(9, 4, 3)
    text = [5] * 95
    drafter.begin(text, sampler)
    depths = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "_LEAST_REACH", 0.0)
        while len(text) < 104:
            tree = drafter.draft(text, budget)
            depths.append(max(tree.depths, default=0))
            drafter.observe(Verdict((), (7,)))
            text.append(7)
    assert depths == [4, 4, 3, 2, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("budget", [TreeBudget(0, 4, 4), TreeBudget(7, 0, 4)], ids=str)
def test_no_budget_no_tree(draft_model, budget):
    sampler = Sampler(GREEDY, VOCABULARY)
    text = [1, 2, 1, 2, 1]
    for drafter in (ModelDrafter(draft_model), LookupDrafter(), NoDrafter()):
        drafter.begin(text, sampler)
        assert len(drafter.draft(text, budget)) == 0
        drafter.observe(Verdict((), (3,)))


# Prompt lookup


def longest_match(text, count):
    """What followed the longest earlier occurrence of the text's end, the latest of equals.

    An occurrence is of two tokens or more. Only the latest 16 are compared.
    """
    ends = [end for end in range(2, len(text)) if text[end - 2 : end] == text[-2:]][-16:]
    best, longest = None, 0
    for end in ends:
        length = max(n for n in range(2, end + 1) if text[end - n : end] == text[-n:])
        if length >= longest:
            best, longest = end, length
    return [] if best is None else text[best : best + count]


@given(
    st.integers(1, 4),
    st.integers(0, 2**32),
    st.lists(st.integers(1, 5), max_size=40),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_lookup_copies_what_followed_the_longest_match(alphabet, seed, grows, nodes, depth):
    rng = np.random.default_rng(seed)
    text = rng.integers(0, alphabet, rng.integers(1, 30)).tolist()
    drafter = LookupDrafter()
    drafter.begin(text, Sampler(GREEDY, VOCABULARY))
    text.append(int(rng.integers(0, alphabet)))
    for new in (*grows, 0):
        tree = drafter.draft(text, TreeBudget(nodes, depth, 4))
        expected = longest_match(text, min(nodes, depth))
        assert tree.tokens.tolist() == expected
        assert tree.parents.tolist() == list(range(-1, len(expected) - 1))
        drafter.observe(Verdict((), (0,)))
        text += rng.integers(0, alphabet, new).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abcdXabcdYcdZabcd", "YcdZ"),  # the latest of the longest
        ("abcdXcdYabcd", "XcdY"),  # the longest, not the latest
        ("abcab", "cab"),  # as far as the text goes
        ("aaaa", "a"),
        ("abcb", ""),  # one equal token says little
        ("a", ""),
    ],
)
def test_lookup_examples(text, expected):
    drafter = LookupDrafter()
    tokens = [ord(letter) for letter in text]
    drafter.begin(tokens, Sampler(GREEDY, VOCABULARY))
    tree = drafter.draft(tokens, TreeBudget(4, 4, 1))
    assert "".join(map(chr, tree.tokens.tolist())) == expected


def test_lookup_forgets_the_text_before():
    drafter = LookupDrafter()
    for text, expected in (([1, 2, 3, 1, 2], [3, 1, 2]), ([4, 1, 2], [])):
        drafter.begin(text, Sampler(GREEDY, VOCABULARY))
        assert drafter.draft(text, TreeBudget(4, 4, 1)).tokens.tolist() == expected
