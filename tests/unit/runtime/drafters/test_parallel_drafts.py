"""Drafts by masks: several tokens by one call, and combinations of their candidates."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from engines import request
from hypothesis import given
from hypothesis import strategies as st
from toy_drafters import Setting, by_masks
from toys import toy_model

from edgespec.runtime.drafters.combinations import Edge, best_nodes
from edgespec.runtime.speculation.engine import Engine


def parallel_engine(noise=0.0):
    target = toy_model()
    return Engine(target, [by_masks(Setting(target, noise, cost=(0.2, 0.01)))])


def test_one_call_drafts_several_tokens():
    engine = parallel_engine()
    rounds = list(engine.generate(request(n=100)))
    assert sum(len(made.tokens) for made in rounds) == 100
    assert len(rounds) < 30
    assert len(engine.drafters[0].model.graph.calls) <= len(rounds)


def test_masks_are_left_out_where_they_gain_nothing():
    good = parallel_engine()
    bad = parallel_engine(noise=3.0)
    for engine in (good, bad):
        list(engine.generate(request(n=250, draft="parallel")))
    well, badly = (engine.drafters[0].model.graph.calls[-20:] for engine in (good, bad))
    assert sum(badly) < 0.6 * sum(well)
    assert max(well) <= 16 + 16  # tokens of the last round, and masks


@given(
    edges=st.lists(st.lists(st.floats(0.01, 1), min_size=1, max_size=3), min_size=1, max_size=3),
    most=st.integers(1, 12),
)
def test_the_best_nodes_are_those_of_all_combinations(edges, most):
    values = [sorted(each, reverse=True) for each in edges]
    everything = [
        float(np.prod([values[depth][place] for depth, place in enumerate(path)]))
        for length in range(1, len(values) + 1)
        for path in itertools.product(*[range(len(each)) for each in values[:length]])
    ]
    expected = sorted(everything, reverse=True)[:most]
    rows = [[Edge(place, value, 0) for place, value in enumerate(each)] for each in values]
    found = list(best_nodes(lambda depth, _: rows[depth] if depth < len(rows) else [], 0, most))
    assert [node.value for node in found] == pytest.approx(expected)
    assert all(node.parent < number for number, node in enumerate(found))
