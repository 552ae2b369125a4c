"""Errors and interrupts between passes: whoever comes later does not wait forever."""

from __future__ import annotations

import threading

import pytest
from engines import engine_of, request, tokens_of, toy_engine

from edgespec.errors import ReentryError

SECONDS = 60


class Failing:
    """Drafts nothing, and fails once where a generation begins, goes on or ends."""

    name = "failing"
    draft = forget = lambda *_: None

    def __init__(self, place, error):
        self._place = place
        self._error = error

    def _reach(self, place):
        if place == self._place:
            self._place = None
            raise self._error

    def begin(self, generation):
        self._reach("begin")
        return True

    def observe(self, generation, reading):
        self._reach("observe")

    def end(self, generation):
        self._reach("end")


def goes_on(engine):
    """Whether another thread gets its text, and no slot is left behind it."""
    found = []

    def work():
        found.extend(tokens_of(engine, request()))
        engine.forget()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return len(found) == 40 and not engine.running and engine.target.pool.used == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RuntimeError])
@pytest.mark.parametrize("place", ["begin", "observe", "end"])
def test_a_text_that_a_drafter_breaks_off_keeps_nobody_waiting(place, error):
    failing = Failing(place, error())
    engine = engine_of(failing)
    with pytest.raises(error):
        tokens_of(engine, request((1, 2), 9))
    assert goes_on(engine)


def test_a_text_that_cannot_begin_fails_alone():
    engine = engine_of(Failing("begin", MemoryError()))
    bad = engine.add(request((1, 2), 9))
    assert len(tokens_of(engine, request())) == 40
    with pytest.raises(MemoryError):
        engine.next_round(bad)
    assert goes_on(engine)


@pytest.mark.parametrize("place", ["add", "clear", "extend"])
def test_an_interrupt_beside_passes_keeps_nobody_waiting(place, monkeypatch):
    engine = toy_engine()
    prefixes = engine.target.prefixes

    def interrupted(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    def use():
        tokens_of(engine, request((1, 2), 9))
        engine.forget()

    monkeypatch.setattr(prefixes, place, interrupted)
    with pytest.raises(KeyboardInterrupt):
        use()
    assert goes_on(engine)


@pytest.mark.parametrize("use", ["close", "forget", "step", "next_round"])
def test_a_handler_that_breaks_off_a_pass_cannot_wait_for_its_end(use):
    """As a signal's handler that closes the model, in the thread that makes the pass."""
    engine = engine_of()
    forward = engine.target.forward
    made = engine.add(request((1, 2), 9))
    refusals = []

    def handled(batch):
        try:
            getattr(engine, use)(*[made] * (use == "next_round"))
        except ReentryError as error:
            refusals.append(str(error))
        return forward(batch)

    engine.target.forward = handled
    thread = threading.Thread(target=engine.next_round, args=(made,), daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive()
    [said] = refusals
    assert said.startswith("this thread makes a text already")
    engine.target.forward = forward
    engine.remove(made)
    assert goes_on(engine)
    engine.close()
    assert engine.target.pool.used == 0


def test_what_such_a_handler_is_told_may_come_out_of_a_pass():
    engine = engine_of()
    graph = engine.target.graph

    def handled(feeds):
        engine.target.graph = graph
        engine.forget()

    engine.target.graph = handled
    with pytest.raises(ReentryError):
        tokens_of(engine, request((1, 2), 9))
    assert goes_on(engine)
