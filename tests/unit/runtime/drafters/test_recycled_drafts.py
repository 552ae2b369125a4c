"""Recycled drafts: what passes have taught saves rounds, of the same salt alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engines import engine_of, on_last_tokens, request, tokens_of
from toys import VOCABULARY

from edgespec.runtime.drafters.recycling import RecyclingDrafter, Successors

NAME = "recycling"


def recycling_engine(count=None, **how):
    engine = engine_of(RecyclingDrafter(lambda: Successors(VOCABULARY)), **how)
    if count:
        engine.target.graph.logits = on_last_tokens(count)
    return engine


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


def test_a_chain_is_drafted_where_trees_have_one_branch():
    engine = recycling_engine(1, target=(1.0, 0.001))
    rounds = list(engine.generate(request(n=30, width=1, draft=NAME)))
    assert max(made.drafted for made in rounds) > 3


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
