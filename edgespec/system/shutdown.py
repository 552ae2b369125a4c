"""Python's end, which waits for engines that a daemon thread is in.

Before 3.14 a thread that comes back from a library while Python ends is unwound where C++ allows no
unwinding: the process then aborts with "terminate called without an active exception".
"""

from __future__ import annotations

import atexit
import os
import threading


class Underway:
    """What Python's end waits for; a context manager, for any number of threads at once.

    From then on only the thread that ends Python gets in, as functions of `atexit` may want to: the
    others wait for good.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: list[int] = []  # threads
        self._last: int | None = None

    def __enter__(self) -> None:
        with self._changed:
            if self._last not in (None, threading.get_ident()):
                self._changed.wait_for(lambda: False)
            self._inside.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside.remove(threading.get_ident())
            self._changed.notify_all()

    def end(self) -> None:
        """Wait for the others who are in, and let nobody in any more but this thread."""
        with self._changed:
            self._last = threading.get_ident()
            # Ctrl-C may have kept this thread from saying that it was out.
            self._changed.wait_for(lambda: {*self._inside} <= {self._last})

    def forked(self) -> None:
        """Only the thread that forked has come along."""
        self._changed = threading.Condition()
        self._inside = [each for each in self._inside if each == threading.get_ident()]


UNDERWAY = Underway()

atexit.register(UNDERWAY.end)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=UNDERWAY.forked)
