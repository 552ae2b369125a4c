"""Tests of proposals against brute force: merged nodes, shared probability, best nodes."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.runtime.speculation.tree import ROOT, Proposal

NEAR = 1e-9


@st.composite
def proposals(draw, max_nodes=12, alphabet=3, source="model"):
    proposal = Proposal()
    for _ in range(draw(st.integers(0, max_nodes))):
        parent = draw(st.integers(ROOT, len(proposal) - 1))
        proposal.add(parent, draw(st.integers(0, alphabet - 1)), draw(st.floats(0, 1)), source)
    return proposal


def branches(proposal):
    """Tokens from the root down to each node, by node."""
    found = {ROOT: ()}
    for node, (parent, token) in enumerate(zip(proposal.parents, proposal.tokens, strict=True)):
        found[node] = (*found[parent], token)
    del found[ROOT]
    return found


def values(proposal):
    return {branch: proposal.values[node] for node, branch in branches(proposal).items()}


def consistent(proposal):
    """Parents come first, siblings differ, and together are worth their parent at most."""
    assert len(set(branches(proposal).values())) == len(proposal)
    for node in range(ROOT, len(proposal)):
        below = [n for n in range(len(proposal)) if proposal.parents[n] == node]
        assert all(child > node for child in below)
        assert all(proposal.values[child] <= proposal.value(node) for child in below)
        total = sum(proposal.values[child] for child in below)
        assert total <= proposal.value(node) + NEAR
        assert proposal.room(node) == pytest.approx(proposal.value(node) - total, abs=NEAR)
    return True


@given(proposals())
def test_siblings_share_what_their_parent_is_worth(proposal):
    assert consistent(proposal)


def test_a_value_is_cut_to_what_the_siblings_left():
    proposal = Proposal()
    first = proposal.add(ROOT, 5, 0.7, "lookup")
    second = proposal.add(ROOT, 6, 0.7, "recycling")
    assert proposal.values == [0.7, pytest.approx(0.3)]
    assert proposal.add(first, 5, 0.9, "lookup") == 2
    assert proposal.values[2] == 0.7
    assert (proposal.add(second, 5, 0.1, "model"), proposal.values[3]) == (3, 0.1)
    assert proposal.source == "lookup+recycling+model"


def test_what_is_proposed_twice_is_one_node_of_the_larger_value():
    proposal = Proposal()
    node = proposal.add(ROOT, 5, 0.4, "model")
    assert proposal.add(ROOT, 5, 0.2, "lookup") == node
    assert proposal.values == [0.4]
    assert proposal.add(ROOT, 5, 0.6, "lookup") == node
    assert proposal.values == [pytest.approx(0.6)]
    assert proposal.sources == ["model"]
    assert consistent(proposal)


@given(proposals(), proposals(source="lookup"))
def test_grafting_unites_the_branches(one, other):
    before = values(one)
    grafted = values(other)
    one.graft(other)
    assert consistent(one)
    after = values(one)
    assert set(after) == set(before) | set(grafted)
    for branch, value in after.items():
        assert value >= before.get(branch, 0) - NEAR
        assert value <= max(before.get(branch, 0), grafted.get(branch, 0)) + NEAR


def feasible(proposal, count):
    """All sets of `count` nodes that form a tree."""
    for nodes in itertools.combinations(range(len(proposal)), count):
        if all(proposal.parents[node] in (ROOT, *nodes) for node in nodes):
            yield nodes


@given(proposals(max_nodes=8), st.integers(0, 9))
def test_the_best_nodes_are_worth_most_of_all_sets_that_hang_together(proposal, count):
    cut = proposal.best(count)
    kept = min(count, len(proposal))
    assert len(cut) == kept
    assert consistent(cut)
    assert set(branches(cut).values()) <= set(branches(proposal).values())
    most = max(sum(proposal.values[n] for n in nodes) for nodes in feasible(proposal, kept))
    assert sum(cut.values) == pytest.approx(most, abs=NEAR)


@given(proposals())
def test_children_and_paths_agree_with_the_parents(proposal):
    for node in range(len(proposal)):
        parent = proposal.parents[node]
        token = proposal.tokens[node]
        assert proposal.child(parent, token) == node
        assert proposal.path(node) == [*proposal.path(parent), node]
        assert proposal.child(node, 9) is None


def test_rounding_lifts_no_node_above_its_parent():
    """Without the cut, raising a child twice would lift it above its parent in one of twenty cases.

    The same holds for a new child that takes all that is left.
    """
    rng = random.Random(1)
    for _ in range(1000):
        proposal = Proposal()
        node = proposal.add(ROOT, 1, rng.random(), "model")
        child = proposal.add(node, 2, rng.random() * proposal.values[node], "model")
        raised = proposal.values[child] + rng.random() * proposal.room(node)
        for value in (raised, 1.0):
            proposal.add(node, 2, value, "lookup")
        assert proposal.values[child] <= proposal.values[node]
        grandchild = proposal.add(child, 3, 1.0, "lookup")
        assert proposal.values[grandchild] <= proposal.values[child]
        assert len(proposal.best(2)) == 2


@given(proposals())
def test_the_branch_is_the_path_that_promises_most(proposal):
    def promised(node):
        return 0 if node == ROOT else proposal.values[node] + promised(proposal.parents[node])

    cut = proposal.branch()
    all_branches = branches(proposal)
    assert cut.parents == [*range(ROOT, len(cut) - 1)]
    assert tuple(cut.tokens) in [*all_branches.values(), ()]
    assert sum(cut.values) == pytest.approx(max(map(promised, range(ROOT, len(proposal)))))


def test_an_empty_proposal():
    assert Proposal().source == "none"
    assert len(Proposal()) == len(Proposal().best(3)) == len(Proposal().branch()) == 0
    assert Proposal().path(ROOT) == []
