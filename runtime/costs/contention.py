"""Measures how much two models slow each other down when they run at the same time.

Devices that share memory or power slow each other down; engines on the same cores do most.
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
from edgespec.system.shutdown import ENGINE_CALLS

_log = logging.getLogger(__name__)

_PASS_ROWS, _CALL_ROWS = 8, 4  # rows of a typical verification, and of a typical draft call
_TURNS = 4


def slowdown(target: Model, draft: Model) -> float:
    """Measures how much the draft model's calls slow down the target's simultaneous passes.

    Returns:
        The factor by which the target's passes take longer, 1 or more.

    Raises:
        DeviceError: if one of the devices fails.
    """
    passes, calls = Runner(target), Runner(draft)
    rows, level = Rows.chain([0] * _PASS_ROWS), Rows.chain([0] * _CALL_ROWS)
    passes.verify(rows)  # warm-up: engines plan memory at the first call of a shape
    calls.verify(level)
    alone, beside = list[float](), list[float]()
    for _ in range(_TURNS):
        alone += timed(passes, rows)
        with _busy(calls, level):
            beside += timed(passes, rows)
    return max(1.0, median(beside) / median(alone))


def apart(target: Iterable[str], draft: Iterable[str]) -> bool:
    """Returns whether engines of these names share no processor, so that overlap can pay."""
    return not _processors(target) & _processors(draft)


def overlap_cost(
    bundle: Bundle, engines: Engines, threads: int, models: Callable[[], tuple[Model, Model]]
) -> OverlapCost:
    """Returns the cost of running a target and its draft model at once, stored or measured now.

    Args:
        bundle: the bundle of both models.
        engines: the target's engines, followed by the draft model's.
        threads: number of threads per engine.
        models: returns both models; called only if they have to be measured.

    Raises:
        DeviceError: if a device fails while it is measured.
    """
    cost = profiles.recall_overlap_cost(bundle, engines, threads)
    if cost is None:
        with ENGINE_CALLS:
            cost = OverlapCost(slowdown(*models()))
        profiles.remember_overlap_cost(bundle, engines, threads, cost)
    _log.info("the target's passes take %.2f times as long beside drafts", cost.slowdown)
    return cost


def _processors(engines: Iterable[str]) -> set[str]:
    """Returns the processors that compute; all engines on the CPU share one.

    An NPU engine whose name ends in `#partly` also computes on the CPU.
    """
    found = set[str]()
    for name in engines:
        bare, *options = name.split("#")
        on_cpu = bare.endswith((":cpu", ":cpu-bf16", ":emulated"))
        found |= {"cpu"} if on_cpu else {bare}
        found |= {"cpu"} if "partly" in options else set()
    return found


@contextmanager
def _busy(runner: Runner, rows: Rows) -> Iterator[None]:
    """Runs calls one after the other on another thread, until the `with` block ends."""
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
    if failures:  # the passes were measured without calls beside them
        raise failures[0]
