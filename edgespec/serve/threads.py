"""Threads for what is done for requests besides their texts, before their turn or behind it.

So the event loop never waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from edgespec.serve.refusals import shutting_down
from edgespec.system.machine import release_memory
from edgespec.system.waiting import NOBODY_WAITS

T = TypeVar("T")

_SIDE = 2  # threads, beyond the one for large requests

_IS_LARGE = ContextVar("_IS_LARGE", default=False)  # of the request that a task is about


class SideThreads:
    """Does what is no text; all methods belong to one event loop.

    Attributes:
        closed: whether the server shuts down.
    """

    def __init__(self) -> None:
        self.closed = False
        self._usual = ThreadPoolExecutor(_SIDE, "edgespec-side")
        self._large = ThreadPoolExecutor(1, "edgespec-large")
        self._awaited = set[asyncio.Future[Any]]()
        self._jobs = set[Future[Any]]()

    @property
    def busy(self) -> bool:
        """Whether threads still work, perhaps for requests that nobody waits for any more."""
        return bool(self._jobs)

    def close(self) -> None:
        """Refuses what waits and what comes, and leaves what is being done."""
        self.closed = True
        for waiting in self._awaited:
            waiting.cancel()
        for threads in (self._usual, self._large):
            threads.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def large(self) -> Iterator[None]:
        """Has what is done for a large request wait for that of others, in the block.

        So they take the memory of one of them at a time, and it goes back to the system.
        """
        before = _IS_LARGE.set(True)
        try:
            yield
        finally:
            _IS_LARGE.reset(before)
            if not self.closed:
                self._note(self._large.submit(release_memory))

    async def do(self, work: Callable[[], T]) -> T:
        """Does work on another thread.

        If the client leaves, work that has begun is told so (`NOBODY_WAITS`) and waited for, so
        that its request counts as long as it takes a thread.

        Raises:
            Exception: what the work raises.
            RequestError: if the server shuts down, also meanwhile.
        """
        self.require_open()
        gone = threading.Event()
        context = copy_context()
        context.run(NOBODY_WAITS.set, gone.is_set)
        job = (self._large if _IS_LARGE.get() else self._usual).submit(context.run, work)
        self._note(job)
        waiting = asyncio.wrap_future(job)
        waiting.add_done_callback(lambda _: gone.set())
        try:
            return await self.until_closed(waiting)
        except asyncio.CancelledError:
            await self._end(job)
            raise

    def require_open(self) -> None:
        """Checks that the server does not shut down.

        Raises:
            RequestError: if it does.
        """
        if self.closed:
            raise shutting_down()

    async def until_closed(self, waiting: asyncio.Future[T]) -> T:
        """Waits for a future, which is cancelled if the server shuts down.

        Raises:
            Exception: the future's.
            RequestError: if the server shuts down meanwhile.
        """
        self._await(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            self.require_open()
            raise

    async def _end(self, job: Future[Any]) -> None:
        """Waits for the end of work that nobody waits for any more, or of the server."""
        if not job.cancel():
            ending = asyncio.wrap_future(job)
            ending.add_done_callback(lambda ending: ending.cancelled() or ending.exception())
            self._await(ending)
            await asyncio.wait([ending])

    def _await(self, waiting: asyncio.Future[Any]) -> None:
        """Has a future cancelled when the server shuts down."""
        self._awaited.add(waiting)
        waiting.add_done_callback(self._awaited.discard)

    def _note(self, job: Future[Any]) -> None:
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
