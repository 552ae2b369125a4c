"""A model whose drafts do not bring their time is asked no more, but tried again."""

from __future__ import annotations

import pytest
from engines import by_model, plain_engine, request, tokens_of
from toys import toy_model

from edgespec.runtime.drafters.balances import Alternative, Balance
from edgespec.runtime.speculation.engine import Engine
from edgespec.runtime.speculation.tree import ROOT, Proposal

LOSS = -0.3  # tokens of a round


def chain(*tokens):
    proposal = Proposal()
    node = ROOT
    for token in tokens:
        node = proposal.add(node, token, 0.5, "lookup")
    return proposal


@pytest.mark.parametrize(
    ("cheaper", "gain"),
    [((), 2), ((9,), 2), ((5,), 1), ((5, 9), 1), ((5, 6), 0), ((5, 6, 7, 8), 0), ((6, 7), 2)],
)
def test_a_draft_gains_what_the_cheaper_tree_would_not_have_brought(cheaper, gain):
    assert Alternative(chain(*cheaper), 0.25).gain([5, 6, 7]) == gain - 0.25


def rounds_until_asked(balance):
    count = 1
    while not balance.begin_round():
        count += 1
    return count


def learned(balance, gain, rounds):
    for _ in range(rounds):
        balance.begin_round()
        balance.learn(gain)
    return balance


def test_what_loses_is_tried_ever_more_seldom():
    balance = Balance()
    waits = []
    for _ in range(20):
        waits.append(rounds_until_asked(balance))
        balance.learn(LOSS)
    first = waits.count(1)
    assert first in range(5, 10)
    assert waits[first:] == [8, 16, 32, 64, 128, *[256] * (15 - first)]


def test_two_good_rounds_make_up_for_any_number_of_bad_ones():
    balance = learned(Balance(), LOSS, 1000)
    assert rounds_until_asked(balance) == 256
    balance.learn(0.6)
    assert rounds_until_asked(balance) == 256
    balance.learn(0.6)
    assert rounds_until_asked(balance) == 1
    learned(balance, LOSS, 1)
    assert rounds_until_asked(balance) == 8


def test_nor_is_a_good_past_remembered_for_long():
    balance = learned(Balance(), 2.0, 1000)
    rounds = 0
    while rounds_until_asked(balance) == 1:
        balance.learn(LOSS)
        rounds += 1
    assert rounds < 20


def test_sequences_of_one_pass_lengthen_the_wait_once():
    balance = learned(Balance(), LOSS, 7)
    assert rounds_until_asked(balance) == 8
    for _ in range(8):
        balance.learn(LOSS)
    assert rounds_until_asked(balance) == 16


def rounds_with(engine, asked):
    """In how many rounds the model has a part of the tree; the tokens are plain decoding's."""
    rounds = list(engine.generate(asked))
    tokens = [token for made in rounds for token in made.tokens]
    assert tokens == tokens_of(plain_engine(), asked)
    return sum(made.source == "model" for made in rounds)


def texts(engine, count, **how):
    asked = [request((1, 2, 3, number), 60, **how) for number in range(count)]
    return [rounds_with(engine, each) for each in asked]


def engine_with(noise):
    return Engine(toy_model(cost=(1.0, 0.1)), [by_model(toy_model(noise, cost=(0.2, 0.03)))])


@pytest.mark.parametrize("how", [{}, {"temperature": 1.0, "seed": 5}], ids=str)
def test_what_texts_have_shown_holds_for_the_next_ones(how):
    engine = engine_with(30.0)
    first, *others = texts(engine, 9, **how)
    assert first > 3
    assert sum(others[-4:]) <= 1
    engine.forget()
    assert texts(engine, 1, **how)[0] > 3


def test_greedy_and_sampled_texts_are_tried_apart():
    engine = engine_with(30.0)
    texts(engine, 9)
    assert texts(engine, 1, temperature=1.0, seed=5)[0] > 3


def test_what_pays_is_asked_on():
    engine = engine_with(0.0)
    for count in texts(engine, 9):
        assert count > 8
