"""Tests of draft sources against brute force."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from candidates import Trusting, candidates_of
from drafts import CANDIDATES, GREEDY, NO_LOGITS, OPTIONS, VOCABULARY, branches, few
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import ENGINES, logits_of

from edgespec.runtime.drafters import (
    LookupDrafter,
    ModelCalls,
    ModelDrafter,
    NoDrafter,
    RecyclingDrafter,
    TreeBudget,
)
from edgespec.runtime.drafters.ranking import rank
from edgespec.runtime.drafters.successors import Successors
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.shapes import SCRATCH_ROWS
from edgespec.runtime.trees.tree import TokenTree
from edgespec.runtime.trees.walk import Verdict

prompts = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=12)


def made(kind, *arguments):
    return kind(*arguments, Trusting())


def by_model(model):
    return made(ModelDrafter, ModelCalls(Runner(model)))


# A draft model


@pytest.fixture(scope="module", params=ENGINES)
def draft_model(request, pairs):
    return pairs.llm("llama", request.param, "model")._loaded["draft"].model


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


@pytest.mark.slow
@given(
    prompts,
    st.sampled_from(OPTIONS),
    st.builds(TreeBudget, st.integers(1, 12), st.integers(1, 4), st.integers(1, 4)),
)
@few
def test_the_tree_is_the_best_first_tree(draft_model, draft_rankings, text, options, budget):
    sampler = Sampler(options, VOCABULARY)
    drafter = by_model(draft_model)
    drafter.begin(text, sampler)
    proposal = drafter.draft(text, budget)
    expected = best_first(draft_rankings, tuple(text), sampler, budget)
    assert sorted(branches(proposal)) == sorted(expected)  # no branch without its beginning
    for value, branch in zip(proposal.values, branches(proposal), strict=True):
        # Siblings are worth their parent at most: float32 shares may add up to a little more.
        assert math.isclose(value, expected[branch], rel_tol=2e-3, abs_tol=2e-6)
    assert len(proposal) <= budget.max_nodes
    assert all(len(branch) <= budget.max_depth for branch in branches(proposal))
    assert max(Counter(proposal.parents).values()) <= budget.width
    assert set(proposal.sources) == {"model"}


@pytest.mark.slow
def test_a_level_that_promises_little_is_not_drafted(draft_model, draft_rankings):
    """Its calls would cost more than they save."""
    sampler, least = Sampler(GREEDY, VOCABULARY), 0.3
    short = 0
    for first in range(1, 30):
        text = [first]
        drafter = by_model(draft_model)
        drafter.begin(text, sampler)
        found = branches(drafter.draft(text, TreeBudget(30, 6, 2, least_gain=least)))
        full = best_first(draft_rankings, tuple(text), sampler, TreeBudget(30, 6, 2))
        assert set(found) <= set(full)
        for depth in range(1, 6):
            level = sorted((v for b, v in full.items() if len(b) == depth), reverse=True)
            if sum(level[:2]) < least - 1e-3:  # not even if all that is below were accepted
                assert max(map(len, found)) <= depth
                short += 1
                break
    assert 0 < short < 29


def play(drafter, text, verdict_of, budget):
    """One round: draft, some verdict, observe."""
    tree = drafter.draft(text, budget).tree()
    verdict = verdict_of(tree)
    drafter.observe(verdict, tree, NO_LOGITS)
    text += verdict.tokens


@st.composite
def rounds(draw):
    """What to accept in each round: a node by its index (or none), and an extra token (or none)."""
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
    """The cache holds only the text; accepted tokens that were never run are fed again."""
    sampler, last = Sampler(options, VOCABULARY), TreeBudget(9, 4, 3)
    used, fresh = (
        by_model(draft_model),
        by_model(draft_model),
    )
    used.begin(text, sampler)
    for budget, place, extra in played:
        play(used, text, verdict_for(place, extra), budget)
    proposal = used.draft(text, last)
    fresh.begin(text, sampler)
    expected = fresh.draft(text, last)
    assert branches(proposal) == branches(expected)
    np.testing.assert_allclose(proposal.values, expected.values, rtol=2e-3)
    assert used._calls._runner.length == fresh._calls._runner.length == len(text)


def test_drafts_take_no_more_rows_than_are_planned_for_them(draft_model):
    drafter, text = by_model(draft_model), [1, 2, 3]
    drafter.begin(text, Sampler(GREEDY, VOCABULARY))
    drafter.draft(text, TreeBudget(127, 127, 48))
    assert sum(drafter.levels) == drafter._calls._runner.scratch == SCRATCH_ROWS


def test_a_second_text_starts_afresh(draft_model):
    sampler, budget = Sampler(GREEDY, VOCABULARY), TreeBudget(9, 4, 3)
    drafter, fresh = (
        by_model(draft_model),
        by_model(draft_model),
    )
    drafter.begin([1, 2, 3], sampler)
    play(drafter, [1, 2, 3, 4], verdict_for(1.0, 5), budget)
    for used in (drafter, fresh):
        used.begin([9, 8], sampler)
    assert branches(drafter.draft([9, 8, 7], budget)) == branches(fresh.draft([9, 8, 7], budget))


def test_of_a_text_longer_than_its_context_a_draft_model_sees_a_window(pairs):
    """The model knows 100 positions; a full window moves on by half of them."""
    model = pairs.llm("stranger", ENGINES[0], "model")._loaded["draft"].model
    sampler, budget = Sampler(GREEDY, VOCABULARY), TreeBudget(9, 4, 3)
    drafter, text = by_model(model), [1 + n % 300 for n in range(95)]
    drafter.begin(text, sampler)
    depths, read = [], []
    while len(text) < 152:
        read.append(sum(drafter.unread(text)))
        proposal = drafter.draft(text, budget)
        depths.append(max(proposal.tree().depths, default=0))
        fresh, first = by_model(model), 50 * max(0, (len(text) - 50) // 50)
        fresh.begin(text[first:-1], sampler)
        expected = fresh.draft(text[first:], budget)
        assert branches(proposal) == branches(expected)
        drafter.observe(Verdict((), (7,)), TokenTree.empty(), NO_LOGITS)
        text.append(7)
    assert depths[:9] == [4, 4, 3, 2, 1, 4, 4, 4, 4]
    assert read == [95, 1, 1, 1, 1, 50, *[1] * 49, 50, 1]


@pytest.mark.parametrize("tokens", [99, 100, 149, 150, 1000])
def test_a_prompt_longer_than_the_drafts_context_is_read_from_where_its_window_begins(
    pairs, tokens
):
    drafter = by_model(pairs.llm("stranger", ENGINES[0], "model")._loaded["draft"].model)
    prompt = [1 + n % 300 for n in range(tokens)]
    drafter.begin(prompt, Sampler(GREEDY, VOCABULARY))
    assert 50 <= sum(drafter.unread([*prompt, 7])) < 100
    assert len(drafter.draft([*prompt, 7], TreeBudget(4, 4, 1))) >= 1


def test_what_a_window_holds_of_an_earlier_text_is_used_again(pairs):
    model = pairs.llm("stranger", ENGINES[0], "model")._loaded["draft"].model
    runner, text = Runner(model), [1 + n % 300 for n in range(130)]
    for unread in (81, 4):  # the window begins at 50
        drafter = made(ModelDrafter, ModelCalls(runner))
        drafter.begin(text, Sampler(GREEDY, VOCABULARY))
        assert sum(drafter.unread([*text, 7])) == unread
        drafter.draft([*text, 7], TreeBudget(1, 1, 1))
        text += [7, 8, 9, 10]


@pytest.mark.parametrize("budget", [TreeBudget(0, 4, 4), TreeBudget(7, 0, 4)], ids=str)
def test_no_budget_no_tree(draft_model, budget):
    sampler = Sampler(GREEDY, VOCABULARY)
    text = [1, 2, 1, 2, 1]
    recycling = made(RecyclingDrafter, Successors(VOCABULARY))
    for drafter in (
        by_model(draft_model),
        made(LookupDrafter),
        recycling,
        NoDrafter(),
    ):
        drafter.begin(text, sampler)
        assert len(drafter.draft(text, budget)) == 0
        drafter.observe(Verdict((), (3,)), TokenTree.empty(), NO_LOGITS)


# Prompt lookup


def longest_match(text, count):
    """What followed the longest earlier occurrence of the text's end, the latest of equal ones.

    An occurrence has two tokens or more.
    """
    ends = [end for end in range(2, len(text)) if text[end - 2 : end] == text[-2:]]
    best, longest = None, 0
    for end in ends:
        length = max(n for n in range(2, end + 1) if text[end - n : end] == text[-n:])
        if length >= longest:
            best, longest = end, length
    if best is None:
        return []
    period = len(text) - best
    while len(text) < best + count:  # what was copied is copied again
        text = [*text, text[-period]]
    return text[best : best + count]


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
    drafter = made(LookupDrafter)
    drafter.begin(text, Sampler(GREEDY, VOCABULARY))
    text.append(int(rng.integers(0, alphabet)))
    for new in (*grows, 0):
        proposal = drafter.draft(text, TreeBudget(nodes, depth, 4))
        expected = longest_match(text, min(nodes, depth))
        assert proposal.tokens == expected
        assert proposal.parents == list(range(-1, len(expected) - 1))
        # A node counts only behind all before it.
        assert all(after < before for before, after in pairwise([1.0, *proposal.values]))
        text += rng.integers(0, alphabet, new).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abcdXabcdYcdZabcd", "YcdZ"),  # the latest of the longest
        ("abcdXcdYabcd", "XcdY"),  # the longest, not the latest
        ("abcab", "cabc"),  # beyond the text's end it repeats
        ("aaaa", "aaaa"),
        ("abcb", ""),  # one equal token says little
        ("a", ""),
    ],
)
def test_lookup_examples(text, expected):
    drafter = made(LookupDrafter)
    tokens = [ord(letter) for letter in text]
    drafter.begin(tokens, Sampler(GREEDY, VOCABULARY))
    proposal = drafter.draft(tokens, TreeBudget(4, 4, 1))
    assert "".join(map(chr, proposal.tokens)) == expected


def test_lookup_forgets_the_text_before():
    drafter = made(LookupDrafter)
    for text, expected in (([1, 2, 3, 1, 2], [3, 1, 2, 3]), ([4, 1, 2], [])):
        drafter.begin(text, Sampler(GREEDY, VOCABULARY))
        assert drafter.draft(text, TreeBudget(4, 4, 1)).tokens == expected
