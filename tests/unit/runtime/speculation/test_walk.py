"""Tests that the walk gives plain decoding's tokens for small trees and all targets."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from candidates import candidates_of

from edgespec.runtime.drafters.acceptance import rank
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.speculation.tree import ROOT, Proposal, Verdict, walk

ALPHABET = (0, 1, 2)
NEVER = frozenset[int]()


def tree_of(tokens, parents=None):
    """A tree of these nodes; a chain unless they have parents."""
    tree = Proposal()
    for token, parent in zip(tokens, parents or range(ROOT, len(tokens) - 1), strict=True):
        tree.add(parent, token, 0.0, "test")
    return tree


def every_tree(max_nodes=3):
    """All trees of up to 3 nodes (so of depth 3 or less), in every topological order."""

    def grow(tokens, parents):
        yield tree_of(tokens, parents)
        if len(tokens) == max_nodes:
            return
        for parent, token in product(range(ROOT, len(tokens)), ALPHABET):
            if (parent, token) not in set(zip(parents, tokens, strict=True)):
                yield from grow([*tokens, token], [*parents, parent])

    return list(grow([], []))


def plain(choose, length, stop_ids):
    """Decoding one token at a time."""
    text = []
    while len(text) < length and not (text and text[-1] in stop_ids):
        text.append(choose(tuple(text)))
    return tuple(text)


def branch_of(tree, nodes):
    return tuple(tree.tokens[node] for node in nodes)


TREES = every_tree()


def test_the_trees_are_all_there():
    shapes = {tuple(tree.parents) for tree in TREES}
    assert len([shape for shape in shapes if len(shape) == 3]) == 6  # parents: 1 * 2 * 3 ways
    # Two nodes: ordered siblings 3 * 2, chains 3 * 3.
    assert len([tree for tree in TREES if len(tree) == 2]) == 15


@pytest.mark.parametrize("stop_ids", [NEVER, frozenset({0}), frozenset({1, 2})], ids=str)
def test_every_tree_under_every_target_gives_plain_decodings_prefix(stop_ids):
    for tree in TREES:
        # The choice after a branch matters only where the tree has that branch: all of these
        # functions, and beyond them nothing that the walk could ask for.
        rows = [(), *(branch_of(tree, tree.path(node)) for node in range(len(tree)))]
        for choices in product(ALPHABET, repeat=len(rows)):
            target = dict(zip(rows, choices, strict=True))
            asked = []

            def choose(row, branch, target=target, rows=rows, asked=asked):
                assert rows[row] == tuple(branch)
                asked.append(row)
                return target[rows[row]]

            verdict = walk(tree, choose, stop_ids)
            expected = plain(target.__getitem__, len(verdict.tokens), stop_ids)
            assert verdict.tokens == expected

            accepted = branch_of(tree, verdict.nodes)
            assert accepted == verdict.tokens[: len(accepted)]
            assert list(verdict.nodes) == (tree.path(verdict.nodes[-1]) if verdict.nodes else [])
            stopped_inside = len(verdict.tokens) == len(verdict.nodes)
            assert len(verdict.tokens) - len(verdict.nodes) in (0, 1)
            assert not stopped_inside or verdict.tokens[-1] in stop_ids
            assert stopped_inside or verdict.tokens not in rows  # no agreeing child is left out
            assert not set(verdict.tokens[:-1]) & stop_ids
            # Rows are asked for along the walk only, each once.
            assert asked == [0, *(node + 1 for node in verdict.nodes)][: len(verdict.tokens)]


@pytest.mark.parametrize(
    ("tree", "choices", "verdict"),
    [
        (tree_of([4, 9, 5]), [4, 9, 5, 6], Verdict((0, 1), (4, 9))),
        (tree_of([4, 5]), [4, 9], Verdict((0,), (4, 9))),
        (tree_of([]), [9], Verdict((), (9,))),
        (tree_of([9, 4], [-1, -1]), [9, 0, 0], Verdict((0,), (9,))),
    ],
    ids=["accepted", "extra", "empty tree", "sibling"],
)
def test_eos_ends_the_walk_and_is_its_last_token(tree, choices, verdict):
    assert walk(tree, lambda row, branch: choices[row], frozenset({9})) == verdict


def test_a_caller_may_keep_the_branches_it_is_given():
    kept = []
    walk(tree_of([1, 2]), lambda row, branch: (kept.append(branch), row + 1)[1], NEVER)
    assert kept == [[], [1], [1, 2]]


@pytest.mark.parametrize(
    "options",
    [
        SamplingOptions(),
        SamplingOptions(temperature=1.0, seed=3),
        SamplingOptions(temperature=1.3, top_k=5, top_p=0.9, seed=4),
    ],
    ids=["greedy", "sampled", "sampled truncated"],
)
def test_drafted_text_is_the_text_without_a_draft(options):
    """With a target that depends on context, a draft that resembles it, and trees of width 3."""
    vocabulary = 12
    prompt = [3, 1]
    rng = np.random.default_rng(0)
    table = rng.standard_normal((vocabulary, vocabulary, vocabulary)).astype(np.float32) * 2
    draft_table = table + rng.standard_normal(table.shape).astype(np.float32)
    sampler = Sampler(options, vocabulary)

    def target(text):
        return sampler.choose(table[text[-2], text[-1]], len(text))

    expected = list(prompt)
    for _ in range(60):
        expected.append(target(expected))

    text = list(prompt)
    rounds = 0
    while len(text) < 62:
        tokens = []
        parents = []
        branches = {ROOT: list(text)}
        for node in range(ROOT, 3):  # the root and the first three nodes get three children each
            before = branches[node]
            row = candidates_of(draft_table[before[-2], before[-1]])
            [ranking] = rank(sampler, row, len(before), 3)
            for token in ranking.tokens:
                branches[len(tokens)] = [*before, token]
                tokens.append(token)
                parents.append(node)
        verdict = walk(tree_of(tokens, parents), lambda row, b, t=text: target(t + b), NEVER)
        text += verdict.tokens
        rounds += 1
    assert text[:62] == expected
    assert rounds < 45  # the draft does help
