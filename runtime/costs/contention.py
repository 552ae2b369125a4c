"""What two models cost each other when they run at once.

Devices that share memory or power slow each other down, and engines on the same cores most of all.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from statistics import median

from edgespec.bundle import Bundle
from edgespec.errors import DeviceError
from edgespec.runtime.costs import profiles
from edgespec.runtime.costs.profiles import OverlapCost
from edgespec.runtime.costs.timing import timed
from edgespec.runtime.engines import Engines
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.system.shutdown import UNDERWAY

_log = logging.getLogger(__name__)

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


def apart(target: Iterable[str], draft: Iterable[str]) -> bool:
    """Whether engines of these names compute on different processors, and so may work at once."""
    return not _processors(target) & _processors(draft)


def overlap_cost(
    bundle: Bundle, engines: Engines, threads: int, models: Callable[[], tuple[Model, Model]]
) -> OverlapCost:
    """What running a target and its draft model at once costs: recalled, or measured now.

    Args:
        bundle: whose they are.
        engines: the target's, and then the draft's.
        threads: for each engine's operators.
        models: gives both; asked only where they have to be measured.

    Raises:
        DeviceError: if a device fails while it is measured.
    """
    cost = profiles.recall_overlap_cost(bundle, engines, threads)
    if cost is None:
        with UNDERWAY:
            cost = OverlapCost(slowdown(*models()))
        profiles.remember_overlap_cost(bundle, engines, threads, cost)
    _log.info("the target's passes take %.2f times as long beside drafts", cost.slowdown)
    return cost


def _processors(engines: Iterable[str]) -> set[str]:
    """What computes: all engines on the CPU share it."""
    bare = (name.partition("#")[0] for name in engines)
    return {"cpu" if name.endswith((":cpu", ":emulated")) else name for name in bare}


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

    thread = threading.Thread(target=work, name="edgespec-contention")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    if failures:  # what was measured had nothing beside it
        raise failures[0]
