"""The time that simulated calls take, in real time and on several devices at once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

# Sleeping ends later than asked for, by less than this; the rest of a wait yields in a loop.
_SLEEP_ERROR = 150e-6


@dataclass(eq=False)  # two calls may look alike
class _Call:
    """What is under way on a device, and the seconds left of it if nothing slows it down."""

    device: str
    left: float


class Clock:
    """What the simulated devices of one machine share: who is busy, and how that slows others.

    A device does one thing at a time: its next call waits for the one before. While another device
    of a group is busy, a call proceeds at 1 / slowdown of its speed. A wait is sleep, so other
    threads have the processor meanwhile.

    Args:
        groups: devices that share their memory's bandwidth, and their slowdown, from 1 upwards.
        now: seconds, monotonic.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Sequence[str], float]] = (),
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._groups = [(frozenset(devices), slowdown) for devices, slowdown in groups]
        self._now = now
        self._known = 0.0  # until when progress is counted
        self._calls: list[_Call] = []
        self._lock = Lock()
        self._queues: defaultdict[str, Lock] = defaultdict(Lock)

    @contextmanager
    def call(self, device: str, seconds: float) -> Iterator[Callable[[], float]]:
        """A call that begins when the device has done the one before, and ends when it is over.

        Args:
            device: that is busy with it.
            seconds: that it takes if nothing slows it down.

        Yields:
            What tells the seconds that are left of it if nothing slows it down from now on.
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
        """Nobody needs to be woken.

        A call that was slowed down finds that something is left of it, and one that is slowed down
        no more is over no sooner than what is slept for.
        """
        while (left := self._left(call)) > 0:
            time.sleep(left - _SLEEP_ERROR if left > _SLEEP_ERROR else 0)

    def _left(self, call: _Call) -> float:
        with self._lock:
            self._proceed()
            return call.left

    def _proceed(self) -> None:
        """Count the progress of all calls until now, from each one's end to the next."""
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
