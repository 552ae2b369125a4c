"""Tests of token trees against brute-force definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.trees.tree import ROOT, TokenTree


@st.composite
def trees(draw, max_nodes=12, alphabet=4):
    tokens, parents, edges = [], [], set()
    for node in range(draw(st.integers(0, max_nodes))):
        edge = (draw(st.integers(ROOT, node - 1)), draw(st.integers(0, alphabet - 1)))
        if edge in edges or edge[0] >= len(tokens):
            continue
        edges.add(edge)
        parents.append(edge[0])
        tokens.append(edge[1])
    return TokenTree(tokens, parents)


def ancestors(tree, node):
    parent = int(tree.parents[node])
    return set() if parent == ROOT else {parent} | ancestors(tree, parent)


@given(trees())
def test_mask_shows_each_row_the_root_its_ancestors_and_itself(tree):
    mask = tree.ancestor_mask()
    assert mask.shape == (len(tree) + 1, len(tree) + 1)
    assert np.flatnonzero(mask[0]).tolist() == [0]
    for node in range(len(tree)):
        seen = {0, node + 1} | {above + 1 for above in ancestors(tree, node)}
        assert set(np.flatnonzero(mask[node + 1]).tolist()) == seen


@given(trees())
def test_depths_paths_and_edges_agree_with_the_parents(tree):
    for node in range(len(tree)):
        path = tree.path(node)
        assert set(path) == ancestors(tree, node) | {node}
        assert path == sorted(path)
        assert tree.depths[node] == len(path)
    for node in range(ROOT, len(tree)):
        children = [child for child in range(len(tree)) if tree.parents[child] == node]
        for token in range(5):
            found = [child for child in children if tree.tokens[child] == token]
            assert tree.find_child(node, token) == (found[0] if found else None)


def test_chain_and_empty():
    chain = TokenTree.chain([5, 5, 9])
    assert chain.parents.tolist() == [-1, 0, 1]
    assert chain.depths.tolist() == [1, 2, 3]
    assert chain.path(2) == [0, 1, 2]
    assert len(TokenTree.empty()) == 0
    assert TokenTree.empty().ancestor_mask().tolist() == [[True]]
    assert TokenTree.empty().tokens.dtype == chain.tokens.dtype == np.int64


def test_a_tree_cannot_be_changed_from_outside():
    tokens = np.array([1, 2])
    tree = TokenTree(tokens, np.array([-1, 0]))
    tokens[0] = 9
    assert tree.tokens.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        tree.tokens[0] = 9


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ([1, 2], [-1], "must be equal"),
        ([[1]], [[-1]], "must be equal"),
        ([1], [0], "node 0 has parent 0"),
        ([1, 2], [1, -1], "node 0 has parent 1"),
        ([1], [-2], "node 0 has parent -2"),
        ([7, 7], [-1, -1], "two children of node -1 have token 7"),
        ([1, 7, 7], [-1, 0, 0], "two children of node 0 have token 7"),
    ],
)
def test_what_is_not_a_tree_is_refused(tokens, parents, message):
    with pytest.raises(ValueError, match=message):
        TokenTree(tokens, parents)
