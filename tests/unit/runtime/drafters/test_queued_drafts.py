"""Chains that a draft's device makes by itself: the same texts, and the host waits less often."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engines import SAMPLINGS, engine_of, plain_engine, request, tokens_at_once, tokens_of
from toys import Ranking, toy_model

from edgespec.errors import DeviceError
from edgespec.runtime.drafters.acceptance import likeliest, listed, rank
from edgespec.runtime.drafters.ahead import AheadGrower
from edgespec.runtime.drafters.levels import LevelGrower
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.drafters.reader import ModelReader

GROWERS = pytest.mark.parametrize("grower", [LevelGrower, AheadGrower])


def queueing_engine(grower=LevelGrower, noise=0.1, ids=None, limit=None, ranks=True):
    """An engine, and the graph of its draft model."""
    model = toy_model(noise, limit, cost=(0.02, 0.01))
    graph = model.graph = Ranking(noise)
    if ranks:
        model.ranking = graph
    drafter = ModelDrafter(grower("model", ModelReader(model, 1000, ids)))
    return engine_of(drafter), graph


def slots_left(engine):
    engine.forget()
    return engine.target.pool.used + engine.drafters[-1].model.pool.used


@GROWERS
@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("limits", [{}, {"max_nodes": 3, "width": 1}, {"n": 2}], ids=str)
def test_tokens_are_those_of_plain_decoding(grower, how, limits):
    engine, graph = queueing_engine(grower)
    asked = request(tuple(range(40)), draft="model", **how, **limits)
    assert tokens_of(engine, asked) == tokens_of(plain_engine(), asked)
    assert not graph.queued or "repetition_penalty" not in how
    if how.get("temperature"):
        assert {*graph.queued} <= {1}  # the noise is the host's
    if not limits and "repetition_penalty" not in how:
        assert max(graph.queued) > 2 or how
    assert slots_left(engine) == 0


@GROWERS
@pytest.mark.parametrize("temperatures", [(0.0, 0.0, 0.0), (0.0, 1.0, 0.0)])
def test_sequences_at_once_are_those_of_each_alone(grower, temperatures):
    engine, graph = queueing_engine(grower)
    asked = [
        request(tuple(range(5, 60 * n)), 8 * n, stop={7}, draft=draft, temperature=each, seed=1)
        for n, draft, each in zip((1, 2, 3), ("model", "auto", "model"), temperatures, strict=True)
    ]
    asked = [replace(each, prompt=tuple(t % 50 for t in each.prompt)) for each in asked]
    assert tokens_at_once(engine, asked) == [tokens_of(plain_engine(), each) for each in asked]
    assert max(graph.queued) > 1
    assert slots_left(engine) == 0


def test_sampled_rows_rank_the_same_where_the_device_lists_them():
    """The noise is added on the host, to the tokens that it would have chosen itself."""
    logits = 3 * np.random.default_rng(2).standard_normal((4, 50)).astype(np.float32)
    best = np.argsort(-logits, axis=1)[:, :32]
    for how in ({}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}):
        sampler = request(temperature=0.7, seed=3, **how).sampler
        own = likeliest(logits, sampler, 4)
        there = listed(best, np.take_along_axis(logits, best, axis=1))
        for position in range(5):
            assert rank(sampler, own, position, 4) == rank(sampler, there, position, 4)


def test_a_chain_waits_once():
    waits, rounds = [], []
    for ranks in (False, True):
        engine, graph = queueing_engine(ranks=ranks)
        rounds.append(len(list(engine.generate(request(n=60, draft="model")))))
        waits.append(len(graph.queued or graph.calls))
    assert rounds[1] < 1.2 * rounds[0]
    assert waits[1] < 0.6 * waits[0]


def test_tokens_that_logits_do_not_stand_for_themselves_are_not_queued():
    ids = np.random.default_rng(0).permutation(50)
    engine, graph = queueing_engine(ids=ids)
    asked = request(n=20, draft="model")
    assert tokens_of(engine, asked) == tokens_of(plain_engine(), asked)
    assert set(graph.queued) == {1}


@GROWERS
def test_a_device_that_fails_drafts_no_more(grower):
    engine, graph = queueing_engine(grower)
    best = graph.best

    def fail(calls):
        if len(graph.queued) > 3:
            raise DeviceError("the device is gone")
        return best(calls)

    graph.best = fail
    asked = request(draft="model")
    assert tokens_of(engine, asked) == tokens_of(plain_engine(), asked)
    assert [each.name for each in engine.drafters] == []


@GROWERS
def test_a_full_pool_drafts_less(grower):
    engine, _ = queueing_engine(grower, limit=24)
    asked = request(n=14, draft="model")
    assert tokens_of(engine, asked) == tokens_of(plain_engine(), asked)
    assert slots_left(engine) == 0
