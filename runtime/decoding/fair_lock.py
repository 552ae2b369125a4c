"""A lock that serves threads in the order in which they asked."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edgespec.system.shutdown import ENGINE_CALLS


class _Wait:
    """A thread that waits.

    Attributes:
        needless: whether it need not wait any more.
        ticket: is released when the thread may go on.
        granted: whether the lock was passed on to it.
    """

    def __init__(self, needless: Callable[[], bool]) -> None:
        self.needless = needless
        self.ticket = threading.Lock()
        self.ticket.acquire()
        self.granted = False

    def end(self, granted: bool) -> None:
        """Lets the thread go on, with the lock or without."""
        self.granted = granted
        self.ticket.release()


class FairLock:
    """A lock that is granted in the order of the requests.

    Python's own locks let the thread that has just released one take it again at once, so a long
    text would keep all others waiting. Python does not exit while a thread waits for the lock or
    holds it.

    In a plain `with` statement it comes before all that `unless` waits for, however many those are:
    it is meant for what takes little time.
    """

    def __init__(self) -> None:
        self._inner = threading.Lock()
        self._taken = False
        self._first: deque[_Wait] = deque()
        self._waiting: deque[_Wait] = deque()

    @contextmanager
    def unless(self, needless: Callable[[], bool]) -> Iterator[bool]:
        """Holds the lock, or does without if that turns out to be needless before it is granted.

        Args:
            needless: looked at before the thread waits, whenever the lock is released, and by
                `look`, which may all be on other threads: it must return at once.

        Yields:
            Whether the lock is held.
        """
        with ENGINE_CALLS:
            if not self._take(self._waiting, needless):
                yield False
                return
            try:
                yield True
            finally:
                self._release()

    def look(self) -> None:
        """Lets threads go for which the lock has become needless; for the thread that holds it."""
        with self._inner:
            self._excuse()

    def __enter__(self) -> None:
        ENGINE_CALLS.__enter__()
        try:
            self._take(self._first, lambda: False)
        except BaseException:
            ENGINE_CALLS.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._release()
        ENGINE_CALLS.__exit__()

    def _take(self, line: deque[_Wait], needless: Callable[[], bool]) -> bool:
        """Waits in a line; returns whether the lock was granted."""
        with self._inner:
            if needless():
                return False
            if not self._taken:
                self._taken = True
                return True
            wait = _Wait(needless)
            line.append(wait)
        try:
            wait.ticket.acquire()  # until it is our turn
        except BaseException:  # such as Ctrl-C, whose handler runs here
            self._give_up(line, wait)
            raise
        return wait.granted

    def _give_up(self, line: deque[_Wait], wait: _Wait) -> None:
        with self._inner:
            if wait in line:
                line.remove(wait)
            elif wait.granted:
                self._pass_on()

    def _release(self) -> None:
        with self._inner:
            self._pass_on()

    def _pass_on(self) -> None:
        self._excuse()
        line = self._first or self._waiting
        if line:
            line.popleft().end(granted=True)
        else:
            self._taken = False

    def _excuse(self) -> None:
        for wait in [each for each in self._waiting if each.needless()]:
            self._waiting.remove(wait)
            wait.end(granted=False)
