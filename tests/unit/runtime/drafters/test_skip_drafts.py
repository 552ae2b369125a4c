from __future__ import annotations

import pytest
from engines import engine_of, plain_engine, request, tokens_at_once, tokens_of
from toys import Given, ToyGraph

from edgespec.runtime.drafters.skip import SkipDrafter
from edgespec.runtime.sequences.model import Model

SAMPLINGS = [
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 1.0, "repetition_penalty": 1.3, "seed": 9},
]


def skipping_engine(noise=0.1, cost=(0.1, 0.01), **how):
    engine = engine_of(**how)
    part = Model(ToyGraph(noise), engine.target.pool, [])
    part.cost = Given(*cost)
    engine.drafters = [SkipDrafter(part)]
    return engine


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("draft", ["auto", "layer-skip"])
def test_skip_drafts_never_change_the_tokens(draft, how):
    asked = [request((1, 2, n), 30 + n, draft=draft, **how) for n in range(4)]
    expected = [tokens_of(plain_engine(), each) for each in asked]
    for noise in (0.05, 1.0):
        engine = skipping_engine(noise)
        assert tokens_at_once(engine, asked) == expected
        engine.forget()
        assert engine.target.pool.used == 0


@pytest.mark.parametrize("how", SAMPLINGS[:2])
def test_a_good_part_saves_rounds_and_reads_no_prompt(how):
    engine = skipping_engine(0.05)
    rounds = list(engine.generate(request(tuple(range(40)), n=60, **how)))
    assert sum(len(made.tokens) for made in rounds) == 60
    assert len(rounds) < 35
    assert {made.source for made in rounds} <= {"prompt", "layer-skip", "none"}
    assert max(engine.drafters[0].model.graph.calls) < 10


def test_a_part_that_costs_too_much_is_left():
    rounds = list(skipping_engine(0.05, cost=(2.0, 0.5)).generate(request(n=60)))
    assert sum(made.drafted > 0 for made in rounds) <= 3


def test_a_closed_generation_frees_its_slots():
    engine = skipping_engine()
    rounds = engine.generate(request())
    for _ in range(3):
        next(rounds)
    rounds.close()
    engine.forget()
    assert engine.target.pool.used == 0
