"""How the benchmark of trees that share experts chooses nodes and counts what they read."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
trees = importlib.import_module("expert_trees")


def place(values, parents, experts):
    """A place whose root and nodes choose these of six experts of one layer."""
    known = np.zeros((len(experts), 1, 6))
    for row, chosen in enumerate(experts):
        known[row, 0, chosen] = 1
    return trees.Place(parents, values, [0] * len(values), values, known, known, frozenset())


def test_a_node_whose_experts_are_read_anyway_comes_first():
    found = place([0.5, 0.45, 0.4], [-1, -1, 1], [[0, 1], [2, 3], [0, 1], [1, 4]])
    dear, free = trees.Costs(0.5, 0.1, 0.2), trees.Costs(0.5, 0.1, 0.0)
    assert trees.grown(found, free, found.known) == [[], [0], [0, 1], [0, 1, 2]]
    assert trees.grown(found, dear, found.known) == [[], [1], [1, 2], [1, 2, 0]]


def test_a_pass_costs_its_rows_and_its_different_experts():
    found = place([0.5, 0.25], [-1, 0], [[0, 1], [1, 2], [2, 3]])
    tokens, cost, rows, experts = trees.outcome(found, [0, 1], trees.Costs(0.5, 0.1, 0.2))
    assert (tokens, rows, experts) == (1.75, 3, 4)
    assert cost == pytest.approx(0.5 + 3 * 0.1 + 4 * 0.2)
    assert trees.different(np.full((2, 1, 4), 0.5)) == pytest.approx(3)


def test_a_token_is_foretold_to_choose_what_it_chose_last():
    routing = trees.Routing(1, 4)
    for _ in range(20):
        routing.learn(7, np.array([[True, False, False, False]]))
        routing.learn(8, np.array([[False, True, False, False]]))
    known, unknown = routing.foretell(7)[0], routing.foretell(9)[0]
    assert known.argmax() == 0
    assert known[0] > 0.9
    assert unknown.sum() == pytest.approx(1)
    assert unknown[:2] == pytest.approx([21 / 44] * 2)
