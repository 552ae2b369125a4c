"""Many generations of one engine: shared beginnings, memory, threads, failures."""

from __future__ import annotations

import random
import threading
import time
from contextlib import nullcontext

import pytest
from engines import by_model, engine_of, plain_engine, request, tokens_of, toy_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import toy_model

from edgespec.errors import DeviceError, InputError, MemoryLimitError
from edgespec.runtime.drafters.lookup import LookupDrafter
from edgespec.runtime.speculation.engine import Engine


def limited(limit, drafts=True):
    drafter = by_model(toy_model(0.2, limit, (0.1, 0.01)))
    drafters = [LookupDrafter(), drafter] if drafts else []
    return Engine(toy_model(limit=limit), drafters)


def nothing_is_left(engine):
    engine.forget()
    return all(
        pool.used == 0
        for pool in (engine.target.pool, *(d.model.pool for d in engine.drafters[1:]))
    )


def finished(engine, generations):
    while engine.running:
        engine.step()
    return [each.tokens[len(each.request.prompt) :] for each in generations]


PROMPT = tuple(range(40)) * 3


def test_an_end_is_never_seen_before_its_last_round():
    early = []

    class Watching(LookupDrafter):
        def observe(self, generation, reading):
            super().observe(generation, reading)
            early.append(generation.has_ended and not generation.rounds)

    engine = Engine(toy_model(), [Watching()])
    assert sum(len(made.tokens) for made in engine.generate(request(PROMPT, 9))) == 9
    assert early
    assert not any(early)


# What sequences share


def test_a_beginning_that_was_read_is_not_read_again():
    engine = plain_engine()
    first = tokens_of(engine, request(PROMPT))
    calls = engine.target.graph.calls
    for prompt, reused in (
        (PROMPT, len(PROMPT) - 1),
        ((*PROMPT, *first, 7), len(PROMPT) + len(first) - 1),  # the last token was never read
        (PROMPT[:50], 49),
        ((*PROMPT[:30], 3), 30),
        ((9, *PROMPT), 0),
    ):
        calls.clear()
        made = engine.add(request(prompt, 5))
        [found] = finished(engine, [made])
        assert (made.reused, calls[0]) == (reused, min(len(prompt) - reused, 128))
        assert found == tokens_of(plain_engine(), request(prompt, 5))
    assert nothing_is_left(engine)


def test_several_answers_to_one_prompt_read_it_once():
    engine = toy_engine()
    made = [engine.add(request(PROMPT, temperature=1.0, seed=seed)) for seed in range(4)]
    found = finished(engine, made)
    assert [each.reused for each in made] == [0, 119, 119, 119]
    for seed, tokens in enumerate(found):
        alone = request(PROMPT, temperature=1.0, seed=seed)
        assert tokens == tokens_of(plain_engine(), alone)
    assert nothing_is_left(engine)


def test_the_draft_model_shares_beginnings_too():
    engine = toy_engine(0.05)
    draft = engine.drafters[1].model
    for _ in range(2):
        draft.graph.calls.clear()
        tokens_of(engine, request(PROMPT, draft="model"))
        rows = sum(draft.graph.calls)
    assert max(draft.graph.calls) < 40  # of the prompt only the end
    assert rows < 200
    assert nothing_is_left(engine)


class Histories:
    """Random requests, many of which begin alike, at random times, some of them cancelled."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.texts = [tuple(self.rng.randrange(50) for _ in range(60)) for _ in range(2)]

    def prompt(self):
        text = self.rng.choice(self.texts)[: self.rng.randrange(1, 60)]
        return (*text, *(self.rng.randrange(50) for _ in range(self.rng.choice([0, 1, 20]))))

    def asked(self):
        return request(
            self.prompt(),
            self.rng.randrange(1, 30),
            draft=self.rng.choice(["auto", "none"]),
            temperature=self.rng.choice([0.0, 1.0]),
            seed=self.rng.randrange(3),
            max_nodes=7,
        )

    def kept(self, tokens):
        self.texts[self.rng.randrange(2)] = tuple(tokens)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from([150, 400, None]))
def test_tokens_are_those_of_each_alone_whatever_is_shared_and_evicted(seed, limit):
    history = Histories(seed)
    engine = limited(limit)
    made = []
    for _ in range(25):
        if history.rng.random() < 0.5:
            made.append(engine.add(history.asked()))
        if made and history.rng.random() < 0.1:
            engine.remove(history.rng.choice(made))
        engine.step()
        if made and history.rng.random() < 0.3:
            history.kept(history.rng.choice(made).tokens)
        assert engine.target.pool.used <= (limit or 10_000)
    finished(engine, [])
    for each in made:
        alone = tokens_of(plain_engine(), each.request)
        new = each.tokens[len(each.request.prompt) :]
        assert new == (alone[: len(new)] if each.cancelled else alone)
        assert each.cancelled or each.finish == "length"
    assert nothing_is_left(engine)


# Memory


def test_generations_wait_for_memory_in_their_order():
    engine = limited(100, drafts=False)
    made = [engine.add(request((n, 2, 3), 40, max_nodes=0)) for n in range(5)]
    assert len(made) == 5
    done = []
    while engine.running:
        engine.step()
        assert sum(bool(each.sequence.length) for each in made) <= 2
        done += [each for each in made if each.finish and each not in done]
    assert done == made
    assert [each.tokens[3:] for each in made] == [
        tokens_of(plain_engine(), request((n, 2, 3), 40)) for n in range(5)
    ]


def test_what_can_never_fit_is_refused_at_once():
    engine = limited(100)
    assert len(tokens_of(engine, request((1,), 86, max_nodes=7))) == 86
    with pytest.raises(MemoryLimitError, match=r"may need 101 rows .* room for 100: shorten"):
        engine.add(request((1,), 87, max_nodes=7))
    assert not engine.running


def test_who_waits_for_memory_of_a_generation_that_nobody_reads_gets_it():
    engine = limited(120, drafts=False)
    first = engine.generate(request((1, 2), 100, max_nodes=0))
    next(first)
    assert tokens_of(engine, request(max_nodes=0)) == tokens_of(plain_engine(), request())
    rest = [token for made in first for token in made.tokens]
    assert rest == tokens_of(plain_engine(), request((1, 2), 100))[1:]


# Whose turn it is


def test_a_short_prompt_does_not_wait_for_a_long_one_which_goes_on():
    engine = plain_engine()
    long = engine.add(request(tuple(range(50)) * 20, 2))
    engine.step()
    short = [engine.add(request((n, 1, 2, n) * 16, 1)) for n in range(9)]
    ended = []
    while engine.running:
        engine.step()
        ended += [each for each in (*short, long) if each.finish and each not in ended]
    assert ended[-1] is long
    assert ended[0] is not long
    calls = engine.target.graph.calls
    assert max(calls) == 128
    assert len(calls) < 20


def test_who_does_not_read_holds_nobody_up():
    engine = plain_engine()
    lagging = engine.add(request(n=200))
    assert len(tokens_of(engine, request((5, 6), 100))) == 100
    assert len(lagging.rounds) == 16
    rest = []
    while (made := engine.next_round(lagging)) is not None:
        rest += made.tokens
    assert rest == tokens_of(plain_engine(), request(n=200))


# Threads


def together(*works):
    """Runs functions on threads of their own; returns once all have ended, which must be soon."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("limit", [None, 250])
def test_eight_threads_get_what_each_gets_alone(limit):
    engine = limited(limit)
    wrong = []

    def work(number):
        history = Histories(number)
        for _ in range(6):
            asked = history.asked()
            if tokens_of(engine, asked) != tokens_of(plain_engine(), asked):
                wrong.append(asked)

    together(*[lambda number=number: work(number) for number in range(8)])
    assert not wrong
    assert not engine.running
    assert nothing_is_left(engine)


def test_threads_share_passes():
    engine = plain_engine()
    made = [engine.add(request((number, 2), 100)) for number in range(4)]

    def read(one):
        while engine.next_round(one) is not None:
            pass

    together(*[lambda one=one: read(one) for one in made])
    # Each is in the passes of others while its reader is at most 16 rounds behind.
    assert len(engine.target.graph.calls) <= 4 * 100 - 3 * 16


class Slow:
    """Drafts nothing, and takes its time to observe the last tokens of a generation."""

    name = "slow"
    draft = end = forget = lambda *_: None

    def __init__(self):
        self.committed = threading.Event()

    def begin(self, generation):
        return True

    def observe(self, generation, reading):
        if generation.remaining == 0:
            self.committed.set()
            time.sleep(0.1)


def test_the_last_round_reaches_whoever_asks_while_it_is_made():
    slow = Slow()
    found = []
    engine = engine_of(slow)
    asked = engine.add(request(n=5))

    def ask():
        slow.committed.wait(60)
        found.extend(iter(lambda: engine.next_round(asked), None))

    def make():
        while not asked.has_ended:
            engine.step()

    together(ask, make)
    assert [token for made in found for token in made.tokens] == asked.tokens[3:]


def test_any_thread_cancels():
    engine = plain_engine()
    started = threading.Event()
    found = []
    made = engine.add(request(n=900))

    def read():
        while (each := engine.next_round(made)) is not None:
            found.append(each)
            started.set()

    def cancel():
        started.wait(60)
        engine.remove(made)

    together(read, cancel)
    assert (made.finish, engine.running) == ("cancelled", [])
    assert len(found) < 900
    assert nothing_is_left(engine)


def test_closing_ends_all():
    engine = limited(300)
    counts = []
    ready = threading.Barrier(4)

    def read(made):
        ready.wait(60)
        rounds = iter(lambda: engine.next_round(made), None)
        counts.append(sum(len(each.tokens) for each in rounds))

    def close():
        ready.wait(60)
        engine.close()

    made = [engine.add(request((n,), 230)) for n in range(3)]  # of which one runs and two wait
    together(*[lambda each=each: read(each) for each in made], close)
    assert len(counts) == 3
    assert {each.finish for each in made[1:]} == {"cancelled"}
    assert engine.target.pool.used == 0
    for use in (engine.forget, lambda: engine.add(request())):
        with pytest.raises(InputError, match="the model was closed: load it again"):
            use()


# Failures


class Failing:
    """A graph that fails once, when it reads a token."""

    def __init__(self, graph, token, error):
        self.graph = graph
        self.token = token
        self.error = error
        self.calls = graph.calls

    def __call__(self, feeds):
        if self.token in feeds["input_ids"].tolist():
            self.token = None
            raise self.error
        return self.graph(feeds)


@pytest.mark.parametrize("error", [DeviceError("gone"), RuntimeError("a bug")])
def test_a_failing_pass_ends_those_in_it_and_the_engine_goes_on(error):
    engine = plain_engine()
    before = tokens_of(engine, request(PROMPT))
    engine.target.graph = Failing(engine.target.graph, 49, error)
    good = engine.add(request())
    bad = engine.add(request((49,)))
    ours = isinstance(error, DeviceError)
    with nullcontext() if ours else pytest.raises(RuntimeError, match="a bug"):
        engine.step()
    assert [each.finish for each in (good, bad)] == ["error", "error"]
    for each in (good, bad):
        with pytest.raises(DeviceError, match="gone" if ours else "was interrupted"):
            engine.next_round(each)
    assert tokens_of(engine, request(PROMPT)) == before
    assert nothing_is_left(engine)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_an_interrupted_pass_ends_those_of_other_threads(error):
    """What a signal's handler raises is for the thread alone in which it ran."""
    engine = plain_engine()
    engine.target.graph = Failing(engine.target.graph, 49, error())
    other = engine.add(request())
    with pytest.raises(error):
        tokens_of(engine, request((49,)))
    with pytest.raises(DeviceError, match="interrupted"):
        engine.next_round(other)
    assert len(tokens_of(engine, request())) == 40
    assert nothing_is_left(engine)


def test_an_interrupt_while_the_graph_computes_keeps_what_was_read():
    engine = plain_engine()
    tokens_of(engine, request(PROMPT))
    kept = engine.target.pool.used
    engine.target.graph = Failing(engine.target.graph, 49, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        tokens_of(engine, request((49,)))
    assert engine.target.pool.used == kept > len(PROMPT)


def test_what_a_thread_raises_that_has_the_engine_ends_no_text():
    """As a server does for embeddings whose client has left."""
    engine = plain_engine()
    made = engine.add(request())
    engine.step()
    used = engine.target.pool.used

    def leave():
        with pytest.raises(TimeoutError), engine.exclusive():
            raise TimeoutError

    together(leave)
    assert engine.target.pool.used == used
    assert finished(engine, [made]) == [tokens_of(plain_engine(), request())]


class Interrupted(Slow):
    """Is interrupted while it observes."""

    def observe(self, generation, reading):
        raise KeyboardInterrupt


def test_an_interrupt_between_commits_leaves_no_slot():
    engine = engine_of(Interrupted())
    made = [engine.add(request((n, 2))) for n in range(3)]
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert {each.finish for each in made} == {"error"}
    engine.forget()
    assert engine.target.pool.used == 0


def test_a_draft_without_room_drafts_nothing():
    engine = toy_engine(0.05)
    engine.drafters[1].model.pool.limit = 30
    assert tokens_of(engine, request(draft="model")) == tokens_of(plain_engine(), request())
    assert tokens_of(engine, request(PROMPT)) == tokens_of(plain_engine(), request(PROMPT))
    assert nothing_is_left(engine)
