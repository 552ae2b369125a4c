from __future__ import annotations

from dataclasses import replace

import pytest
from engines import (
    SAMPLINGS,
    engine_of,
    on_last_tokens,
    plain_engine,
    request,
    tokens_at_once,
    tokens_of,
)
from toys import VOCABULARY

from edgespec.runtime.drafters.recycling import RecyclingDrafter, Successors

NAME = "recycling"


def recycling_engine(count=None, **how):
    engine = engine_of(RecyclingDrafter(lambda: Successors(VOCABULARY)), **how)
    if count:
        engine.target.graph.logits = on_last_tokens(count)
    return engine


@pytest.mark.parametrize("how", SAMPLINGS)
def test_recycled_drafts_never_change_the_tokens(how):
    asked = [request((1, 2, n), 30 + n, draft=NAME, **how) for n in range(4)]
    expected = [tokens_of(plain_engine(), each) for each in asked]
    engine = recycling_engine(target=(1.0, 0.01))
    assert tokens_at_once(engine, asked) == expected
    assert tokens_at_once(engine, asked) == expected  # with what they have taught
    engine.forget()
    assert engine.target.pool.used == 0


@pytest.mark.parametrize("count", [1, 2])
def test_what_a_sequence_taught_saves_rounds_in_another(count):
    engine = recycling_engine(count)
    first = list(engine.generate(request((9, 1, 2), 60, draft=NAME)))
    second = list(engine.generate(request((8, 1, 2), 60, draft=NAME)))
    assert sum(len(made.tokens) for made in second) == 60
    assert len(second) < len(first)
    assert len(second) < 25
    assert {made.source for made in second} <= {"prompt", "none", NAME}
    engine.forget()
    assert len(list(engine.generate(request((9, 1, 2), 60, draft=NAME)))) == len(first)


def test_salts_keep_what_they_taught_apart():
    engine = recycling_engine(1)
    asked = request((9, 1, 2), 60, draft=NAME)

    def deepest_at_first(salt):
        _, first, *_ = engine.generate(replace(asked, salt=salt))
        return first.accepted

    assert [deepest_at_first(salt) > 1 for salt in ("a", "b", "", "a", "b")] == [
        False,
        False,
        False,
        True,
        True,
    ]
    for number in range(8):
        deepest_at_first(f"further {number}")
    assert deepest_at_first("a") <= 1  # only the latest salts are kept
    assert deepest_at_first("") > 1


def test_rejected_rows_teach():
    engine = recycling_engine(1, target=(1.0, 0.001))
    text = tokens_of(engine, request(n=40, draft=NAME))
    known = engine.drafters[0].successors
    tokens = {token for token in range(VOCABULARY) if known.after(-9, token)[1]}
    assert len(tokens - {*text, 3}) > 5
    for token in tokens:
        logits = on_last_tokens(1)([token + 1])[:VOCABULARY]
        assert list(known.after(-9, token)[0]) == (-logits).argsort()[:8].tolist()


def test_trees_keep_to_their_limits():
    engine = recycling_engine(1, target=(1.0, 0.001))
    for made in engine.generate(request(n=60, max_nodes=3, draft=NAME)):
        assert made.drafted <= 3
    rounds = list(engine.generate(request(n=30, width=1, draft=NAME)))
    assert max(made.drafted for made in rounds) > 3
    assert sum(made.drafted for made in engine.generate(request(n=30, max_nodes=0))) == 0
    assert sum(made.drafted for made in engine.generate(request(n=30, draft="none"))) == 0


def test_nothing_is_drafted_where_rows_are_dear():
    rounds = list(recycling_engine(1, target=(1.0, 1.0)).generate(request(n=40, draft=NAME)))
    assert not any(made.drafted for made in rounds)


class First:
    """Proposes one token."""

    name = "first"
    observe = end = forget = lambda *_: None

    def begin(self, generation):
        return True

    def draft(self, plan):
        for part in plan.drafting:
            part.proposal.add(-1, 7, 0.5, self.name)


def test_branches_grow_below_what_others_propose():
    engine = recycling_engine(1, target=(1.0, 0.001))
    engine.drafters = [First(), *engine.drafters]
    seen = []
    engine.target.graph.logits, logits = (
        lambda tokens: seen.append([int(each) - 1 for each in tokens[-2:]]) or logits(tokens),
        engine.target.graph.logits,
    )
    list(engine.generate(request(n=60)))
    best = on_last_tokens(1)([8])[:VOCABULARY].argmax()
    assert [7, best] in seen
