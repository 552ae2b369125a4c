"""What every drafter keeps to: drafts never change a text, stay in their limits, leave nothing."""

from __future__ import annotations

import time

import pytest
from engines import SAMPLINGS, plain_engine, tokens_at_once, tokens_of
from toy_drafters import KINDS, MODEL_KINDS, Setting, request_for
from toys import tapped_model

from edgespec.errors import DeviceError
from edgespec.runtime.speculation.engine import Engine

kinds = pytest.mark.parametrize("kind", KINDS)
model_kinds = pytest.mark.parametrize("kind", MODEL_KINDS)
OWN_POOL = [kind for kind in MODEL_KINDS if kind not in ("layer-skip", "assistant")]
PROMPTS = ((1,), (1, 2, 3), tuple(range(40)) * 4, tuple(n * n % 50 for n in range(150)))


def engine_of(kind, **how):
    target = tapped_model()
    return Engine(target, [KINDS[kind](Setting(target, **how))])


def used(engine):
    models = [engine.target, *(getattr(each, "model", engine.target) for each in engine.drafters)]
    return [model.pool.used for model in models]


def drafts(rounds):
    return [made.drafted for made in rounds if made.source not in ("prompt", "none")]


@kinds
@pytest.mark.parametrize("how", SAMPLINGS, ids=str)
def test_drafts_never_change_the_tokens(kind, how):
    """Alone, beside others, and with what earlier texts have taught and left."""
    engine = engine_of(kind, noise=0.3)
    for draft in ("auto", engine.drafters[0].name):
        asked = [request_for(kind, each, 30, draft=draft, **how) for each in PROMPTS]
        expected = [tokens_of(plain_engine(), each) for each in asked]
        asked = [request_for(kind, each, 30, draft=draft, **how) for each in PROMPTS]
        assert [tokens_of(engine, each) for each in asked] == expected
        asked = [request_for(kind, each, 30, draft=draft, **how) for each in PROMPTS]
        assert tokens_at_once(engine, asked) == expected
    engine.forget()
    assert set(used(engine)) == {0}


@kinds
def test_a_source_begins_where_it_is_asked_for(kind):
    engine = engine_of(kind)
    drafter = engine.drafters[0]
    others = {"model", "parallel", "head", "layer-skip", "lookup", "recycling"} - {drafter.name}
    if kind in ("grammar", "prediction"):  # whose requests say so
        others = set()
    for draft in (*others, "none"):
        rounds = list(engine.generate(request_for(kind, draft=draft)))
        assert not drafts(rounds)
    assert not drafts(engine.generate(request_for(kind, max_nodes=0)))
    if kind in MODEL_KINDS:
        drafter.in_auto = False
        assert not drafts(engine.generate(request_for(kind)))
        assert drafts(engine.generate(request_for(kind, draft=drafter.name)))


@kinds
def test_trees_keep_to_their_limits(kind):
    engine = engine_of(kind)
    for most in (1, 3):
        rounds = list(engine.generate(request_for(kind, n=60, max_nodes=most)))
        assert max(drafts(rounds), default=0) <= most
    for count in (1, 2, 3):  # a tree is never deeper than what is left of a text
        for made in engine.generate(request_for(kind, n=count)):
            assert made.accepted < max(count, 1)


@kinds
def test_what_earlier_texts_taught_is_forgotten(kind, monkeypatch):
    """As is what they left: a text is then made in the same rounds as at first."""
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)  # by which trees are sized
    engine = engine_of(kind)
    first = facts(engine, kind)
    facts(engine, kind)
    engine.forget()
    assert set(used(engine)) == {0}
    assert kind.endswith("ahead") or facts(engine, kind) == first


def facts(engine, kind):
    rounds = engine.generate(request_for(kind, n=60))
    return [(made.source, made.drafted, made.accepted, made.tokens) for made in rounds]


@kinds
def test_a_text_that_is_left_frees_its_slots(kind):
    engine = engine_of(kind)
    beside = engine.add(request_for(kind, (4, 5, 6), 40))
    for rounds in (1, 3, 6):
        left = engine.generate(request_for(kind, n=60))
        for _ in range(rounds):
            next(left)
        left.close()
    while engine.running:
        engine.step()
    assert beside.tokens[3:] == tokens_of(plain_engine(), request_for(kind, (4, 5, 6), 40))
    engine.forget()
    assert set(used(engine)) == {0}


@kinds
def test_drafters_forget_in_the_middle_of_a_text(kind):
    engine = engine_of(kind)
    made = engine.add(request_for(kind, n=40))
    while engine.running:
        engine.step()
        engine.forget()
    assert made.tokens[3:] == tokens_of(plain_engine(), request_for(kind, n=40))
    engine.forget()
    assert set(used(engine)) == {0}


@kinds
def test_texts_that_go_on_from_a_shared_beginning_are_drafted_alike(kind):
    """Forks: what one has read, others share, in the drafter's pool as in the target's."""
    engine = engine_of(kind)
    beginning = PROMPTS[2]
    first = tokens_of(engine, request_for(kind, beginning, 30))
    forks = [(*beginning, *first[:count], count) for count in (0, 7, 20, 29)]
    asked = [request_for(kind, each, 30) for each in forks]
    expected = [tokens_of(plain_engine(), request_for(kind, each, 30)) for each in forks]
    assert tokens_at_once(engine, asked) == expected
    engine.forget()
    assert set(used(engine)) == {0}


@kinds
def test_closing_ends_what_is_drafted(kind):
    engine = engine_of(kind)
    drafter = engine.drafters[0]
    engine.add(request_for(kind, n=60))
    for _ in range(4):
        engine.step()
    engine.close()
    assert not engine.drafters
    assert engine.target.pool.used == 0
    assert getattr(drafter, "model", engine.target).pool.used == 0


@model_kinds
def test_a_good_model_saves_rounds(kind):
    engine = engine_of(kind)
    rounds = list(engine.generate(request_for(kind, n=100)))
    assert sum(len(made.tokens) for made in rounds) == 100
    assert len(rounds) < 60
    assert max(made.accepted for made in rounds) > 2
    assert {made.source for made in rounds} <= {"prompt", "none", engine.drafters[0].name}


@pytest.mark.parametrize("kind", [kind for kind in MODEL_KINDS if "ahead" not in kind])
def test_a_model_that_costs_too_much_is_left(kind):
    rounds = list(engine_of(kind, cost=(2.0, 0.5)).generate(request_for(kind, n=60)))
    assert len(drafts(rounds)) <= 4


@pytest.mark.parametrize("kind", OWN_POOL)
def test_what_there_is_no_room_for_is_not_drafted(kind):
    """In the model's context, or in its pool."""
    for how in ({"context": 20}, {"limit": 12}):
        engine = engine_of(kind, **how)
        asked = [request_for(kind, each, 30) for each in PROMPTS[1:]]
        expected = [tokens_of(plain_engine(), each) for each in asked]
        assert [tokens_of(engine, each) for each in asked] == expected
        assert tokens_at_once(engine, asked) == expected
        engine.forget()
        assert set(used(engine)) == {0}


@model_kinds
def test_a_model_whose_device_fails_drafts_no_more(kind, monkeypatch):
    engine = engine_of(kind)
    [drafter] = engine.drafters
    forward = drafter.model.forward
    calls = []

    def fail(batch):
        calls.append(batch)
        if len(calls) > 3:
            raise DeviceError("the device is gone")
        return forward(batch)

    monkeypatch.setattr(drafter.model, "forward", fail)
    asked = request_for(kind, n=40, draft=drafter.name)
    assert tokens_of(engine, asked) == tokens_of(plain_engine(), asked)
    assert engine.drafters == []
    engine.forget()
    drafter.forget()
    assert engine.target.pool.used == drafter.model.pool.used == 0
