"""Work for asyncio: what takes long is done on threads, and the event loop goes on.

Imported where asyncio is in use already, since loading it takes 20 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from edgespec.system.processes import listen_for_forks

T = TypeVar("T")


class _Threads:
    """Threads of edgespec's own: on the event loop's, looking up a host would wait for texts."""

    def __init__(self) -> None:
        self.after_fork()
        listen_for_forks(self)

    def after_fork(self) -> None:
        """See `ForkListener`."""
        self.pool = ThreadPoolExecutor(64, "edgespec-async")


_THREADS = _Threads()


def begin_work(work: Callable[[], T]) -> asyncio.Future[T]:
    """Begins work on a thread, in the context of the task."""
    # Not a task: the end of the event loop would cancel it while its thread goes on.
    return asyncio.get_running_loop().run_in_executor(_THREADS.pool, copy_context().run, work)


async def wait_for_end(work: asyncio.Future[T]) -> None:
    """Waits for the end of work whatever happens; a task that is cancelled is so behind it."""
    interrupted: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            interrupted = error
    work.exception()  # so that it counts as seen
    if interrupted is not None:
        raise interrupted
