"""Wherever a signal's handler may raise, the engine goes on for others.

Python runs handlers where a Python function begins and where a call of C returns, at which a
profiler is told, too: here it raises instead of a handler, at one such place after the other.
"""

from __future__ import annotations

import gc
import sys
import threading
from itertools import count

import pytest
from engines import plain_engine, request, tokens_of, toy_engine

TEXT = request((1, 2), 3)
DRAFTED = request((1, 2), 6, draft="model")


class LateError(Exception):
    """What the handler of a signal raises."""


def interrupted(work, place):
    """Runs work, and raises at a place of it; returns whether it has so many."""
    places = count()

    def raise_at(frame, event, argument):
        counts = event in ("call", "c_return") and argument is not sys.setprofile
        if counts and next(places) == place:
            sys.setprofile(None)
            raise LateError

    gc.disable()  # nobody waits for what it ends, which sees no error
    sys.setprofile(raise_at)
    try:
        work()
    except LateError:
        pass
    finally:
        sys.setprofile(None)
        gc.enable()
    return next(places) > place


def drafting_engine():
    return toy_engine(0.05)


def generate(engine):
    tokens_of(engine, TEXT)


def draft(engine):
    tokens_of(engine, DRAFTED)


def have_it_alone(engine):
    with engine.exclusive():
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a finalizer
@pytest.mark.parametrize(
    ("made", "work", "apart"),
    [(plain_engine, generate, 1), (drafting_engine, draft, 5), (plain_engine, have_it_alone, 1)],
)
def test_others_go_on(made, work, apart):
    expected = tokens_of(plain_engine(), DRAFTED)
    for place in count(0, apart):
        engine = made()
        reached = interrupted(lambda engine=engine: work(engine), place)
        tokens = []
        other = threading.Thread(
            target=lambda engine=engine, tokens=tokens: tokens.extend(tokens_of(engine, DRAFTED)),
            daemon=True,
        )
        other.start()
        other.join(5)
        assert tokens == expected, place
        assert not engine.running
        engine.forget()
        used = [each.model.pool.used for each in engine.drafters if hasattr(each, "model")]
        assert not any([engine.target.pool.used, *used]), place
        if not reached:
            break
    assert place > 20
