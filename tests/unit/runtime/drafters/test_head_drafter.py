"""Drafts by heads: what their rows read, where features begin, and where there is no room."""

from __future__ import annotations

import time

import pytest
from engines import SAMPLINGS, plain_engine, request, tokens_of
from toy_drafters import Setting
from toys import tapped_model

from edgespec.runtime.drafters.ahead import AheadGrower
from edgespec.runtime.drafters.levels import LevelGrower
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.speculation.engine import Engine

LONG = tuple(n * n % 50 for n in range(700))


def head_engine(context=1000, grower=LevelGrower):
    target = tapped_model()
    drafter = ModelDrafter(grower("head", Setting(target, context=context).head_reader()))
    return Engine(target, [drafter]), drafter.model


def drafted(rounds):
    return sum(made.drafted > 0 for made in rounds)


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("context", [1000, 60])
def test_a_head_goes_on_from_its_own_rows_while_the_target_works(how, context):
    engine, head = head_engine(context=context, grower=AheadGrower)
    whole = engine.target.graph
    begun = 0

    def slow(feeds):
        time.sleep(0.01)
        return whole(feeds)

    engine.target.graph = slow
    for prompt in ((1,), LONG[:40], LONG[:300]):
        asked = request(prompt, n=80, max_nodes=8, **how)
        rounds = list(engine.generate(asked))
        found = [token for made in rounds for token in made.tokens]
        assert found == tokens_of(plain_engine(), asked)
        begun += sum(made.begun for made in rounds)
    assert begun > 3
    assert head.graph.graph.longest <= context
    engine.forget()
    assert engine.target.pool.used == head.pool.used == 0


def test_sequences_share_the_calls_of_a_head():
    engine, head = head_engine()
    made = [engine.add(request(LONG[:length], n=60)) for length in (3, 40, 150)]
    calls = 0
    while engine.running:
        before = len(head.graph.graph.calls)
        engine.step()
        calls = max(calls, len(head.graph.graph.calls) - before)
    for generation, length in zip(made, (3, 40, 150), strict=True):
        assert generation.tokens[length:] == tokens_of(plain_engine(), request(LONG[:length], n=60))
    assert calls < 20  # levels, not nodes


def test_a_head_begins_where_features_are_still_kept():
    engine, head = head_engine(context=2000)
    assert drafted(engine.generate(request(LONG, n=60))) > 10
    assert min(head.graph.graph.positions.values()) == len(LONG) - 512 + 1
    assert tokens_of(engine, request(LONG, n=60)) == tokens_of(plain_engine(), request(LONG, n=60))


def test_a_head_begins_behind_what_a_sequence_shares():
    engine, head = head_engine()
    first = engine.add(request(LONG[:60], n=50))
    while first.is_new:
        engine.step()
    head.graph.graph.positions.clear()
    second = engine.add(request((*LONG[:40], 7, 7), n=50, draft="head"))
    second.sequence.append(first.sequence.fork(40).slots.tolist())
    engine.remove(first)
    rounds = []
    while engine.running:
        rounds += engine.step().values()
    assert drafted(rounds) > 10
    assert min(head.graph.graph.positions.values()) == 41 - 16  # the last ones are read again
    assert second.tokens[42:] == tokens_of(plain_engine(), request((*LONG[:40], 7, 7), n=50))
    engine.forget()
    assert engine.target.pool.used == head.pool.used == 0


def test_a_head_shares_its_rows_of_what_begins_like_an_earlier_text():
    engine, head = head_engine()
    text = (*LONG[:60], *tokens_of(engine, request(LONG[:60], n=50)))
    for prompt in (LONG[:60], (*text, 7, 8), (*LONG[:40], 7, 7)):
        head.graph.graph.calls.clear()
        made = engine.add(request(prompt, n=50))
        rounds = 0
        while engine.running and made.finish is None:
            rounds += bool(engine.step())
        engine.remove(made)
        assert made.tokens[len(prompt) :] == tokens_of(plain_engine(), request(prompt, n=50))
        assert rounds < 20  # which a head without the rows before would need 48 for
    engine.forget()
    assert engine.target.pool.used == head.pool.used == 0


def test_a_head_begins_anew_where_its_context_is_full():
    asked = request(LONG[:30], n=100, max_nodes=6)
    engine, _ = head_engine(context=48)
    rounds = list(engine.generate(asked))
    assert drafted(rounds[10:]) > 10
    assert [token for made in rounds for token in made.tokens] == tokens_of(plain_engine(), asked)
    engine, _ = head_engine(context=4)  # fewer than a tree may be deep, but at the end
    assert not drafted(list(engine.generate(asked))[:-4])


def test_without_features_nothing_is_kept():
    engine = plain_engine()
    generation = engine.add(request())
    engine.step()
    assert (generation.features.start, generation.features.stop) == (0, 0)
