"""A lock that serves threads in the order in which they asked."""

from __future__ import annotations

import threading
from collections import deque

from edgespec.system.shutdown import ENGINE_CALLS


class FairLock:
    """A lock for `with` statements that is granted in the order of the requests.

    Python's own locks let the thread that has just released one take it again at once, so a long
    text would keep all others waiting. Python does not exit while a thread waits for the lock or
    holds it.
    """

    def __init__(self) -> None:
        self._inner = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        ENGINE_CALLS.__enter__()
        try:
            self._take()
        except BaseException:
            ENGINE_CALLS.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        with self._inner:
            self._pass_on()
        ENGINE_CALLS.__exit__()

    def _take(self) -> None:
        with self._inner:
            if not self._taken:
                self._taken = True
                return
            ticket = threading.Lock()
            ticket.acquire()
            self._waiting.append(ticket)
        try:
            ticket.acquire()  # until it is our turn
        except BaseException:  # such as Ctrl-C, whose handler runs here
            self._give_up(ticket)
            raise

    def _give_up(self, ticket: threading.Lock) -> None:
        with self._inner:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            else:  # the lock was already passed to us
                self._pass_on()

    def _pass_on(self) -> None:
        if self._waiting:
            self._waiting.popleft().release()
        else:
            self._taken = False
