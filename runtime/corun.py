"""What two models cost each other when they run at once.

Devices that share memory or power slow each other down, and engines on the same cores most of all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import numpy as np

from edgespec.runtime.feeds import Rows
from edgespec.runtime.model import Model, Runner

_PASS_ROWS, _CALL_ROWS = 8, 4  # of a usual verification, and of a level of a usual draft
_TURNS, _PASSES = 4, 2


def slowdown(target: Model, draft: Model) -> float:
    """How much longer the target's passes take while the draft's calls go on beside them.

    Returns:
        A factor, 1 or more.
    """
    passes, calls = Runner(target), Runner(draft)
    rows, level = _chain(_PASS_ROWS), _chain(_CALL_ROWS)
    passes.verify(rows)  # the first call of a shape plans for it
    calls.verify(level)
    alone, beside = list[float](), list[float]()
    for _ in range(_TURNS):
        alone += _timed(passes, rows)
        with _busy(calls, level):
            beside += _timed(passes, rows)
    return max(1.0, median(beside) / median(alone))


def _chain(rows: int) -> Rows:
    return Rows([0] * rows, range(rows), np.tri(rows, dtype=np.bool_))


def _timed(runner: Runner, rows: Rows) -> list[float]:
    seconds = []
    for _ in range(_PASSES):
        begin = time.perf_counter()
        runner.verify(rows)
        seconds.append(time.perf_counter() - begin)
    return seconds


@contextmanager
def _busy(runner: Runner, rows: Rows) -> Iterator[None]:
    """Calls on a thread of their own, one after the other."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            runner.verify(rows)

    thread = threading.Thread(target=work, name="edgespec-corun")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
