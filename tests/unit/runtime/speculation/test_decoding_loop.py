from __future__ import annotations

import numpy as np
import pytest
from engines import plain_engine, request, tokens_of, toy_engine
from hypothesis import given
from hypothesis import strategies as st
from toys import toy_model

from edgespec.errors import DeviceError, InputError
from edgespec.runtime.sequences.model import LongPasses
from edgespec.runtime.speculation.engine import Engine
from edgespec.runtime.speculation.generation import PROMPT

SAMPLINGS = [
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.7, "top_k": 8, "top_p": 0.9, "seed": 1},
    {"repetition_penalty": 1.4},
    {"temperature": 1.0, "repetition_penalty": 1.3, "min_p": 0.02, "seed": 9},
]
SOURCES = ["auto", "model", "lookup"]


def no_slot_is_left(engine):
    engine.forget()
    pools = [engine.target.pool, *(d.model.pool for d in engine.drafters if d.name == "model")]
    return all(pool.used == 0 for pool in pools)


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("draft", SOURCES)
def test_drafts_never_change_the_tokens(draft, how):
    engine = toy_engine()
    for prompt in ((1,), (4, 4, 4, 4), tuple(range(40)) * 4):
        expected = tokens_of(plain_engine(), request(prompt, **how))
        assert tokens_of(engine, request(prompt, draft=draft, **how)) == expected
    assert no_slot_is_left(engine)


@pytest.mark.parametrize("how", SAMPLINGS[:2])
def test_a_good_draft_saves_rounds(how):
    rounds = list(toy_engine(0.05).generate(request(draft="model", n=100, **how)))
    assert sum(len(each.tokens) for each in rounds) == 100
    assert len(rounds) < 50
    assert {each.source for each in rounds} <= {PROMPT, "model", "none"}
    assert sum(each.accepted for each in rounds) == 100 - len(rounds)


def test_costs_are_found_out_behind_the_first_token():
    model = toy_model()
    asked = request((1, 2, 3), 12)
    engine = Engine(model, timings=[model.measuring(0.1)])
    rounds = engine.generate(asked)
    assert len(next(rounds).tokens) == 1
    assert model.graph.calls == [3]
    tokens = [token for made in rounds for token in made.tokens]
    assert model.graph.calls[:5] == [3, 1, 1, 4, 1]  # a pass that is timed before each of the text
    assert tokens == tokens_of(plain_engine(), asked)[1:]
    assert no_slot_is_left(engine)


def test_lookup_saves_rounds_where_a_sequence_repeats_itself():
    engine = toy_engine()
    engine.target.graph.logits = lambda tokens: np.eye(53)[(int(tokens[-1]) % 5)]
    rounds = list(engine.generate(request(draft="lookup", n=60)))
    assert len(rounds) < 25
    assert {each.source for each in rounds[-2:]} == {"lookup"}


@given(
    prompts=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 9)), min_size=1, max_size=5),
    seed=st.integers(0, 3),
    data=st.data(),
)
def test_sequences_at_once_are_those_of_each_alone(prompts, seed, data):
    engine = toy_engine()
    asked = [
        request(
            tuple(step * n % 50 for n in range(length)),
            data.draw(st.integers(1, 12)),
            stop={7},
            draft=data.draw(st.sampled_from([*SOURCES, "none"])),
            temperature=data.draw(st.sampled_from([0.0, 1.0])),
            seed=seed,
        )
        for length, step in prompts
    ]
    made = {}
    waiting = list(asked)
    while waiting or engine.running:
        if waiting and (not engine.running or data.draw(st.booleans())):
            following = waiting.pop()
            made[engine.add(following)] = following
        engine.step()
    for generation, of in made.items():
        assert generation.tokens[len(of.prompt) :] == tokens_of(plain_engine(), of)
    assert no_slot_is_left(engine)


def test_prompts_are_read_in_chunks_beside_other_sequences():
    engine = toy_engine()
    first = engine.add(request())
    long = engine.add(request(tuple(range(50)) * 6))
    rounds = [engine.step() for _ in range(5)]
    assert rounds[0][first].source == PROMPT
    assert rounds[0][first].tokens
    assert [made[long].tokens == () for made in rounds] == [True] * 3 + [False] * 2
    assert [made[long].source == PROMPT for made in rounds] == [True] * 4 + [False]
    assert all(made[first].tokens for made in rounds)
    assert engine.target.graph.calls[0] == 128


@pytest.mark.parametrize("draft", ["none", "auto"])
def test_ends(draft):
    whole = tokens_of(plain_engine(), request())
    for asked, finish, length in (
        (request(n=9, draft=draft), "length", 9),
        (request(context=3 + 7, draft=draft), "context", 7),
        (request(stop={whole[4]}, draft=draft), "stop", whole.index(whole[4]) + 1),
        (request(n=1, draft=draft), "length", 1),
    ):
        engine = toy_engine()
        generation = engine.add(asked)
        while generation.finish is None:
            engine.step()
        assert generation.finish == finish
        assert generation.tokens[3:] == whole[:length]
        assert no_slot_is_left(engine)


def test_a_closed_generation_frees_its_slots():
    engine = toy_engine()
    rounds = engine.generate(request())
    for _ in range(3):
        next(rounds)
    rounds.close()
    assert not engine.running
    assert no_slot_is_left(engine)


def test_trees_keep_to_their_limits():
    for made in toy_engine(0.05).generate(request(max_nodes=3, n=60)):
        assert made.drafted <= 3
    rounds = list(toy_engine(0.05).generate(request(width=1, n=60)))
    assert max(made.drafted for made in rounds) > 1
    assert tokens_of(toy_engine(), request(max_nodes=0)) == tokens_of(plain_engine(), request())


def test_a_draft_that_costs_nothing_runs_no_more_nodes_than_a_tree_may_have():
    engine = toy_engine(target=(1.0, 0.0), draft=(1e-9, 0.0))
    rounds = list(engine.generate(request(draft="model", max_nodes=9, n=40)))
    calls = engine.drafters[-1].model.graph.calls
    read = len(rounds) + len(request().prompt) + 40
    assert 2 < max(calls) <= 9
    assert sum(calls) <= 9 * len(rounds) + read


def test_drafts_are_not_made_where_rows_are_dear():
    dear = toy_engine(0.05, target=(1.0, 1.0), draft=(2.0, 0.5))
    rounds = list(dear.generate(request(draft="model", n=60)))
    assert sum(made.drafted > 0 for made in rounds) <= 3


def test_a_long_prompt_is_not_drafted_for_where_reading_it_does_not_pay():
    engine = toy_engine(0.05, draft=(0.3, 0.3))
    rounds = list(engine.generate(request(tuple(range(50)) * 10, 5, draft="model")))
    assert not any(made.drafted for made in rounds)


class Digits:
    """A constraint: only tokens below 10, of which `forbidden` is the state's."""

    def __init__(self):
        self.state = 0

    def allowed(self):
        allowed = np.zeros(50, np.bool_)
        allowed[:10] = True
        allowed[self.state] = False
        return allowed

    def advance(self, token):
        self.state = token

    def forced(self):
        return []

    def valid(self, tokens):
        return len(tokens)


@pytest.mark.parametrize("how", [{}, {"presence_penalty": 1.0, "logit_bias": {11: 99.0, 5: 9.0}}])
@pytest.mark.parametrize("draft", SOURCES)
def test_grammars_hold_with_drafts(draft, how):
    expected = tokens_of(plain_engine(), request(grammar=Digits(), **how))
    assert tokens_of(toy_engine(), request(grammar=Digits(), draft=draft, **how)) == expected
    assert all(token < 10 for token in expected)
    assert (expected.count(5) > 15) == bool(how)  # it may not be said twice in a row


def test_logprobs_are_those_of_the_tokens():
    plain = [made.logprobs for made in plain_engine().generate(request(logprobs=2))]
    drafted = [made.logprobs for made in toy_engine(0.05).generate(request(logprobs=2))]
    assert sum(drafted, ()) == sum(plain, ())
    assert len(sum(plain, ())) == 40
    forced = request(logprobs=0, n=9, logit_bias={7: 99.0})  # which they are before, as llama.cpp's
    found = sum([made.logprobs for made in toy_engine().generate(forced)], ())
    assert {each.token for each in found} == {7}
    assert max(each.logprob for each in found) < -0.1


class Stuck(Digits):
    def advance(self, token):
        raise InputError("no further token")


def test_a_failing_sequence_leaves_the_others_alone():
    engine = toy_engine()
    bad = engine.add(request(grammar=Stuck()))
    good = engine.add(request())
    while engine.running:
        engine.step()
    assert (bad.finish, good.finish) == ("error", "length")
    assert good.tokens[3:] == tokens_of(plain_engine(), request())
    assert no_slot_is_left(engine)
    with pytest.raises(InputError, match="no further"):
        tokens_of(engine, request(grammar=Stuck()))


def test_logits_that_are_not_finite_are_an_error():
    engine = plain_engine()
    engine.target.graph.logits = lambda _: np.full(53, np.nan)
    with pytest.raises(DeviceError, match="best logit"):
        tokens_of(engine, request())


def test_long_prompts_are_read_in_even_chunks_where_a_target_reads_long_ones_otherwise():
    engine = toy_engine()
    engine.target.long_passes = LongPasses(256, 512)
    prompt = (*range(50),) * 12
    assert tokens_of(engine, request(prompt, 3, draft="none")) == tokens_of(
        plain_engine(), request(prompt, 3)
    )
    assert engine.target.graph.calls[:3] == [300, 300, 1]
    short = engine.add(request((7, 8, 9), 30, draft="none"))
    engine.step()
    engine.add(request((9, *prompt), 1, draft="none"))
    engine.step()
    assert short.tokens
    assert engine.target.graph.calls[-1] <= 65
