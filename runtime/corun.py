"""What two models cost each other when they run at once.

Devices that share memory or power slow each other down, and engines on the same cores most of all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from edgespec.errors import DeviceError
from edgespec.runtime.feeds import Rows
from edgespec.runtime.model import Model
from edgespec.runtime.profiling import timed
from edgespec.runtime.runner import Runner

_PASS_ROWS, _CALL_ROWS = 8, 4  # of a usual verification, and of a level of a usual draft
_TURNS = 4


def slowdown(target: Model, draft: Model) -> float:
    """How much longer the target's passes take while the draft's calls go on beside them.

    Returns:
        A factor, 1 or more.

    Raises:
        DeviceError: if one of their devices fails.
    """
    passes, calls = Runner(target), Runner(draft)
    rows, level = Rows.chain([0] * _PASS_ROWS), Rows.chain([0] * _CALL_ROWS)
    passes.verify(rows)  # the first call of a shape plans for it
    calls.verify(level)
    alone, beside = list[float](), list[float]()
    for _ in range(_TURNS):
        alone += timed(passes, rows)
        with _busy(calls, level):
            beside += timed(passes, rows)
    return max(1.0, median(beside) / median(alone))


@contextmanager
def _busy(runner: Runner, rows: Rows) -> Iterator[None]:
    """Calls on a thread of their own, one after the other."""
    done, failures = threading.Event(), list[DeviceError]()

    def work() -> None:
        try:
            while not done.is_set():
                runner.verify(rows)
        except DeviceError as error:
            failures.append(error)

    thread = threading.Thread(target=work, name="edgespec-corun")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    if failures:  # what was measured had nothing beside it
        raise failures[0]
