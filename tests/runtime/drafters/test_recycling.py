"""Tests of token recycling: what verified rows teach, and what trees grow from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.drafters import RecyclingDrafter, TreeBudget
from edgespec.runtime.drafters.acceptance import Calibration
from edgespec.runtime.drafters.successors import Successors
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import ROOT, TokenTree
from edgespec.runtime.trees.walk import Verdict, walk

VOCABULARY = 24
PADDED = 32
BUDGET = TreeBudget(12, 5, 3)


def row(token, previous):
    """Logits of a target whose likeliest next tokens depend on the last two."""
    logits = np.zeros(PADDED, np.float32)
    order = np.random.default_rng([token, previous + 1]).permutation(VOCABULARY)
    logits[order] = np.arange(VOCABULARY, 0, -1)
    logits[VOCABULARY:] = 99  # padding, which no text has
    return logits


def likeliest(token, previous):
    return np.argsort(-row(token, previous)[:VOCABULARY], kind="stable")[:8].tolist()


def started(text):
    drafter = RecyclingDrafter(Successors(VOCABULARY), Calibration())
    drafter.begin(text, Sampler(SamplingOptions(), VOCABULARY))
    return drafter


def verify(text, tree):
    """The pass and the verdict of that target."""
    tokens = [text[-1], *tree.tokens.tolist()]
    above = [text[-2], *(tokens[parent + 1] for parent in tree.parents.tolist())]
    logits = np.array([row(token, before) for token, before in zip(tokens, above, strict=True)])

    def choose(line, _):
        return int(logits[line][:VOCABULARY].argmax())

    return walk(tree, choose, frozenset()), logits


def play(drafter, text, tree):
    drafter.draft(text, BUDGET)
    verdict, logits = verify(text, tree)
    drafter.observe(verdict, tree, logits)
    text += verdict.tokens


def test_it_starts_with_nothing():
    assert len(started([1, 2]).draft([1, 2], BUDGET)) == 0


def test_every_verified_row_teaches_on_the_accepted_path_and_off_it():
    tree = TokenTree([5, 6, 7, 6], [ROOT, 0, ROOT, 2])
    drafter = started([1, 2])
    play(drafter, [1, 2], tree)
    for previous, token in ((1, 2), (2, 5), (5, 6), (2, 7), (7, 6)):
        found = drafter.draft([9, previous, token], TreeBudget(3, 1, 3))
        assert found.tokens == likeliest(token, previous)[:3]
        assert found.values == sorted(set(found.values), reverse=True)
    for previous, token in ((1, 2), (2, 5), (2, 7), (7, 6)):
        # A token that stood behind others falls back to itself, where it came last.
        found = drafter.draft([9, 23, token], TreeBudget(3, 1, 3))
        assert found.tokens == likeliest(token, previous)[:3]
    assert len(drafter.draft([9, 9], BUDGET)) == 0


@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_vocabulary_may_have_fewer_tokens_than_are_kept(size):
    drafter, text = RecyclingDrafter(Successors(size), Calibration()), [0, 0]
    drafter.begin(text, Sampler(SamplingOptions(), size))
    drafter.draft(text, BUDGET)
    logits = np.arange(size, dtype=np.float32)[None, :].repeat(2, axis=0)
    verdict = walk(TokenTree.empty(), lambda *_: size - 1, frozenset())
    drafter.observe(verdict, TokenTree.empty(), logits)
    found = drafter.draft(text, TreeBudget(12, 1, 12))
    assert found.tokens == list(range(size))[::-1]


@given(st.lists(st.integers(0, VOCABULARY - 1), min_size=2, max_size=6), st.integers(0, 12))
def test_what_it_grows_hangs_together_within_the_budget(text, nodes):
    drafter, budget = started(text), TreeBudget(nodes, 3, 2)
    for _ in range(6):
        play(drafter, text, drafter.draft(text, BUDGET).tree())
    proposal = drafter.draft(text, budget)
    tree = proposal.tree()  # refuses what is none
    assert len(tree) <= nodes
    assert max(tree.depths, default=0) <= 3
    for parent in set(proposal.parents):
        assert proposal.parents.count(parent) <= 2
    assert all(0 < value <= 1 for value in proposal.values)


def test_a_text_that_comes_again_is_drafted():
    text = [3, 4]
    drafter = started(text)
    for _ in range(200):  # few pairs of tokens: this target soon goes round in a circle
        play(drafter, text, TokenTree.empty())
    tree = drafter.draft(text, TreeBudget(8, 8, 1)).tree()
    verdict, _ = verify(text, tree)
    assert len(verdict.nodes) == len(tree) == 8
    # Having been right so often, it is sure of it; what is unlikely is not proposed then.
    sure = drafter.draft(text, TreeBudget(30, 4, 3, least_value=0.3))
    assert sure.tokens == list(verdict.tokens[:4])
    assert sure.values[0] > 0.9


def test_branches_grow_from_what_another_source_proposed():
    text = [3, 4]
    drafter = started(text)
    for _ in range(40):
        play(drafter, text, TokenTree.empty())
    spine = Proposal()
    node = spine.add(ROOT, (text[-1] + 1) % VOCABULARY, 0.6, "lookup")
    spine.add(node, text[-5], 0.5, "lookup")
    before = list(zip(spine.parents, spine.tokens, strict=True))
    drafter.extend(spine, text, BUDGET)
    assert list(zip(spine.parents, spine.tokens, strict=True))[:2] == before
    assert spine.source == "lookup+recycling"
    assert len(spine) > 2
    assert sum(spine.values[n] for n in range(len(spine)) if spine.parents[n] == ROOT) <= 1 + 1e-9


@pytest.mark.parametrize("proposed", [1, 2, 4])
def test_below_what_another_source_proposed_the_tree_is_as_deep_as_the_budget(proposed):
    text = [3, 4]
    drafter = started(text)
    for _ in range(200):
        play(drafter, text, TokenTree.empty())
    right = drafter.draft(text, TreeBudget(4, 4, 1)).tokens
    spine, node = Proposal(), ROOT
    for token in right[:proposed]:
        node = spine.add(node, token, 0.9, "lookup")
    drafter.extend(spine, text, TreeBudget(8, 4, 1))
    assert spine.tokens == right


def test_a_successor_has_its_share_of_what_others_leave_and_of_its_parents_value():
    text = [3, 4]
    drafter = started(text)
    for _ in range(40):
        play(drafter, text, TokenTree.empty())
    alone = drafter.draft(text, TreeBudget(3, 1, 3))
    assert sorted(alone.values, reverse=True) == alone.values
    beside = Proposal()
    beside.add(ROOT, next(n for n in range(VOCABULARY) if n not in alone.tokens), 0.6, "lookup")
    drafter.extend(beside, text, TreeBudget(4, 1, 3))
    assert beside.tokens[1:] == alone.tokens
    assert beside.values[1:] == pytest.approx([0.4 * value for value in alone.values])
    edge = alone.values[0]
    deep = drafter.draft(text, TreeBudget(3, 3, 1))
    assert deep.values == pytest.approx([edge, edge**2, edge**3])


def test_a_rank_that_comes_true_more_often_is_worth_more():
    """In a text that always takes the target's second choice."""
    text = [3, 4]
    drafter = started(text)
    for _ in range(200):
        drafter.draft(text, BUDGET)
        logits = row(text[-1], text[-2])[None]
        second = likeliest(text[-1], text[-2])[1]
        drafter.observe(Verdict((), (second,)), TokenTree.empty(), logits)
        text.append(second)
    best = drafter.draft(text, TreeBudget(3, 1, 3)).best(1)
    assert best.tokens == [likeliest(text[-1], text[-2])[1]]
    assert best.values[0] > 0.9


@pytest.mark.parametrize("text", [[7], [7, 7, 7]])
def test_texts_of_one_token(text):
    drafter = started(text)
    play(drafter, [0, *text], TokenTree.empty())
    assert len(drafter.draft([7], BUDGET)) > 0
