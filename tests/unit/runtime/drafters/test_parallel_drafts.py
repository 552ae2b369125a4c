from __future__ import annotations

import itertools

import numpy as np
import pytest
from engines import SAMPLINGS, engine_of, plain_engine, request, tokens_at_once, tokens_of
from hypothesis import given
from hypothesis import strategies as st
from toys import VOCABULARY, Given, ToyGraph, toy_shape

from edgespec.runtime.drafters.combined import Edge, best_nodes
from edgespec.runtime.drafters.parallel import ParallelDrafter
from edgespec.runtime.sequences.model import Model
from edgespec.runtime.sequences.pool import KVPool

MASK = VOCABULARY + 1


class Reader(ToyGraph):
    """A toy that knows what follows masks: what it would choose itself, token by token."""

    def logits(self, tokens):
        known = [token for token in tokens if token != MASK + 1]
        for _ in range(len(tokens) - len(known)):
            best = super().logits(np.array(known))[:VOCABULARY].argmax()
            known.append(best + 1)
        return super().logits(np.array(known))


def parallel_engine(noise=0.0, cost=(0.2, 0.01), context=1000):
    model = Model(Reader(noise), KVPool([toy_shape()], "fp32"), [])
    model.cost = Given(*cost)
    return engine_of(ParallelDrafter(model, context, MASK))


def no_slot_is_left(engine):
    engine.forget()
    return engine.target.pool.used == 0 == engine.drafters[0].model.pool.used


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("draft", ["auto", "parallel"])
def test_parallel_drafts_never_change_the_tokens(draft, how):
    asked = [request((1, 2, n), 30 + n, draft=draft, **how) for n in range(4)]
    expected = [tokens_of(plain_engine(), each) for each in asked]
    for noise in (0.0, 1.0):
        engine = parallel_engine(noise)
        assert tokens_at_once(engine, asked) == expected
        assert no_slot_is_left(engine)


def test_one_call_drafts_several_tokens():
    engine = parallel_engine()
    rounds = list(engine.generate(request(n=100)))
    assert sum(len(made.tokens) for made in rounds) == 100
    assert len(rounds) < 30
    assert {made.source for made in rounds} <= {"prompt", "parallel"}
    assert len(engine.drafters[0].model.graph.calls) <= len(rounds)
    assert no_slot_is_left(engine)


def test_masks_are_left_out_where_they_gain_nothing():
    good = parallel_engine()
    bad = parallel_engine(noise=3.0)
    for engine in (good, bad):
        list(engine.generate(request(n=250, draft="parallel")))
    well, badly = (engine.drafters[0].model.graph.calls[-20:] for engine in (good, bad))
    assert sum(badly) < 0.6 * sum(well)
    assert max(well) <= 16 + 16  # tokens of the last round, and masks


def test_limits():
    short = parallel_engine(context=20)
    rounds = list(short.generate(request((1, 2, 3), 40)))
    assert not any(made.drafted for made in rounds[-22:])
    dear = parallel_engine(cost=(2.0, 0.5))
    assert sum(made.drafted > 0 for made in dear.generate(request(n=60))) <= 3
    for made in parallel_engine().generate(request(n=30, max_nodes=3)):
        assert made.drafted <= 3


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
