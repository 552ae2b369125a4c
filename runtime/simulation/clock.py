"""The time of simulated calls: in real time, and on several devices at once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

# Sleeping takes up to so many seconds too long, so the end of a wait is a loop that yields.
_SLEEP_ERROR = 150e-6


@dataclass(eq=False)  # two calls may have equal fields
class _Call:
    """A call in progress on a device.

    Attributes:
        device: name of the device.
        left: seconds until its end if nothing slows it down.
    """

    device: str
    left: float


class Clock:
    """The clock that the simulated devices of one machine share.

    A device runs one call at a time; its next call waits. While another device of a group is busy,
    a call proceeds at 1 / slowdown of its speed. Waiting is a sleep, so other threads have the
    processor meanwhile.

    Args:
        groups: groups of devices that share memory bandwidth, each with its slowdown, 1 or more.
        now: returns monotonic seconds.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Sequence[str], float]] = (),
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._groups = [(frozenset(devices), slowdown) for devices, slowdown in groups]
        self._now = now
        self._known = 0.0  # time up to which progress is counted
        self._calls: list[_Call] = []
        self._lock = Lock()
        self._queues: defaultdict[str, Lock] = defaultdict(Lock)

    @contextmanager
    def call(self, device: str, seconds: float) -> Iterator[Callable[[], float]]:
        """Simulate a call, which begins after the one before it on the same device.

        The context ends when the call's time is over.

        Args:
            device: name of the device.
            seconds: duration of the call if nothing slows it down.

        Yields:
            A function that returns the seconds that are left if nothing slows the call down from
            now on.
        """
        with self._lock:
            queue = self._queues[device]
        with queue:
            call = _Call(device, seconds)
            with self._lock:
                self._proceed()
                self._calls.append(call)
            try:
                yield lambda: self._left(call)
                self._wait(call)
            finally:
                with self._lock:
                    self._calls.remove(call)

    def _wait(self, call: _Call) -> None:
        """Sleep until a call is over.

        No notification is needed: a call that was slowed down finds that some of it is left, and a
        call is never over before the time that was slept for.
        """
        while (left := self._left(call)) > 0:
            time.sleep(left - _SLEEP_ERROR if left > _SLEEP_ERROR else 0)

    def _left(self, call: _Call) -> float:
        with self._lock:
            self._proceed()
            return call.left

    def _proceed(self) -> None:
        """Advance all calls until now, one interval between ends of calls at a time."""
        now = self._now()
        while busy := [call for call in self._calls if call.left > 0]:
            factors = [self._slowdown(call, busy) for call in busy]
            ends = [call.left * factor for call, factor in zip(busy, factors, strict=True)]
            step = min(now - self._known, *ends)
            for call, factor, end in zip(busy, factors, ends, strict=True):
                call.left = 0.0 if end <= step else call.left - step / factor
            self._known += step
            if step < min(ends):
                break
        self._known = now

    def _slowdown(self, call: _Call, busy: Sequence[_Call]) -> float:
        others = {other.device for other in busy} - {call.device}
        return max(
            (slow for group, slow in self._groups if call.device in group and group & others),
            default=1.0,
        )
