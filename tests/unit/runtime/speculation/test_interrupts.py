"""Wherever a signal's handler may raise, the engine goes on for others.

Python runs handlers where a Python function begins and where a call of C returns, at which a
profiler is told, too: here it raises instead of a handler, at one such place after the other.
"""

from __future__ import annotations

import gc
import sys
import threading
from itertools import count, takewhile

import pytest
from engines import plain_engine, request, tokens_of

TEXT = request((1, 2), 3)


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


def generate(engine):
    tokens_of(engine, TEXT)


def have_it_alone(engine):
    with engine.exclusive():
        pass


@pytest.mark.parametrize("work", [generate, have_it_alone])
def test_others_go_on(work):
    expected = tokens_of(plain_engine(), TEXT)

    def goes_on(place):
        engine = plain_engine()
        reached = interrupted(lambda: work(engine), place)
        made = []
        other = threading.Thread(target=lambda: made.extend(tokens_of(engine, TEXT)), daemon=True)
        other.start()
        other.join(5)
        assert made == expected, place
        assert not engine.running
        return reached

    assert sum(1 for _ in takewhile(goes_on, count())) > 20  # places
