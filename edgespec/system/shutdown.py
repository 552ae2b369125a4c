"""Makes interpreter shutdown wait for engine calls of daemon threads.

Before Python 3.14, a thread that returns from a library during shutdown is unwound through C++
frames that allow no unwinding, and the process aborts with "terminate called without an active
exception".
"""

from __future__ import annotations

import atexit
import threading

from edgespec.system.processes import listen_for_forks


class EngineCalls:
    """Context manager around engine calls, for any number of threads at once.

    Shutdown waits for the calls that are running. After that only the thread that shuts Python
    down may enter, as `atexit` functions may do; other threads block forever.
    """

    def __init__(self) -> None:
        self._inside: list[int] = []  # identifiers of the threads that are in a call
        self._last: int | None = None  # identifier of the thread that shuts Python down
        self.after_fork()

    def __enter__(self) -> None:
        with self._lock:
            if self._last not in (None, threading.get_ident()):
                self._changed.wait_for(lambda: False)
            self._inside.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside.remove(threading.get_ident())
            self._changed.notify_all()

    def end(self) -> None:
        """Waits for the calls of other threads, and lets only this thread enter from now on."""
        with self._lock:
            self._last = threading.get_ident()
            # Ctrl-C may have kept this thread from leaving its own call.
            self._changed.wait_for(lambda: {*self._inside} <= {self._last})

    def after_fork(self) -> None:
        """See `ForkListener`: no thread but the one that forked exists."""
        # Entered itself, since a signal's handler may interrupt a condition's own methods.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._inside = [each for each in self._inside if each == threading.get_ident()]


ENGINE_CALLS = EngineCalls()
"""The engine calls of this process."""

atexit.register(ENGINE_CALLS.end)
listen_for_forks(ENGINE_CALLS)
