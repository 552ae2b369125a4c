"""The texts and vectors of all requests: who asks first is served first, each on a thread.

What is done for a request besides, before its turn or behind it, is done on a few other threads, so
that the event loop never waits for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, TypeVar

from edgespec.llm.llm import LLM
from edgespec.llm.result import Result
from edgespec.llm.stream import Stream
from edgespec.serve.metrics import Metrics
from edgespec.serve.models import Claim, Models, ServedModel
from edgespec.serve.parts import Conversations, Part, Reader
from edgespec.serve.refusals import RequestError, shutting_down
from edgespec.system.machine import release_memory
from edgespec.system.waiting import NOBODY_WAITS

Show = Callable[[Part | None], Awaitable[None]]
"""Shows a client a part; None shows that its request was accepted, and that it still waits."""

_ASIDE = 2  # threads for what is done besides texts, beyond the one for large requests
_FIRST_SIGN = 2.0  # seconds until a client hears that its request is still being looked at
_SIGNS = 5.0  # seconds between further signs

_IS_LARGE = ContextVar("_IS_LARGE", default=False)  # of the request that a task is about

Begun = TypeVar("Begun")
Made = TypeVar("Made")


class TextService:
    """Makes what requests ask for, on threads that share the engine's passes.

    All methods belong to one event loop. The engine lets a text begin when memory has room for it.

    Args:
        models: models to use.
        parallel: number of requests at once.
        limit: maximum number of waiting requests.
        body_limit: maximum number of bytes in a request's body.

    Attributes:
        metrics: metrics of the server.
    """

    def __init__(
        self, models: Models, parallel: int, limit: int, body_limit: int = 4 << 20
    ) -> None:
        self.models = models
        self.body_limit = body_limit
        self.metrics = Metrics(models, lambda: self.running, lambda: self.waiting)
        self._parallel = parallel
        self._limit = limit
        self._threads = ThreadPoolExecutor(parallel, "edgespec-text")
        self._asides = ThreadPoolExecutor(_ASIDE, "edgespec-aside")
        self._large = ThreadPoolExecutor(1, "edgespec-large")
        self._awaited: set[asyncio.Future[Any]] = set()  # what is done aside
        self._started: set[Future[Any]] = set()
        self._requests = 0
        self._jobs: dict[Future[Any], Callable[[], None]] = {}  # and what ends them early
        self._conversations = defaultdict[str, Conversations](Conversations)  # by model
        self._closed = False

    @property
    def running(self) -> int:
        """The number of requests whose turn it is."""
        return min(self._requests, self._parallel)

    @property
    def waiting(self) -> int:
        """The number of requests that wait for their turn."""
        return self._requests - self.running

    @property
    def busy(self) -> bool:
        """Whether threads still work, perhaps for requests that nobody waits for any more."""
        return bool(self._started) or self.models.busy

    def close(self) -> None:
        """Ends texts after their current round, and refuses waiting and further requests."""
        self._closed = True
        self.models.stop()
        for waiting in self._awaited:
            waiting.cancel()
        for threads in (self._asides, self._large):
            threads.shutdown(wait=False, cancel_futures=True)
        for job, cancel in tuple(self._jobs.items()):
            if not job.cancel():
                cancel()
        self._threads.shutdown(wait=False)

    @contextmanager
    def large(self) -> Iterator[None]:
        """Has what is done aside for a large request wait for that of others, in the block.

        So they take the memory of one of them at a time, and it goes back to the system.
        """
        told = _IS_LARGE.set(True)
        try:
            yield
        finally:
            _IS_LARGE.reset(told)
            if not self._closed:
                self._note(self._large.submit(release_memory))

    async def aside(self, work: Callable[[], Made]) -> Made:
        """Does work that is no text on another thread.

        If the client leaves, work that has begun is told so (`NOBODY_WAITS`) and waited for, so
        that its request counts as long as it takes a thread.

        Raises:
            Exception: what the work raises.
            RequestError: if the server shuts down, also meanwhile.
        """
        if self._closed:
            raise shutting_down()
        gone = threading.Event()
        context = copy_context()
        context.run(NOBODY_WAITS.set, gone.is_set)
        job = (self._large if _IS_LARGE.get() else self._asides).submit(context.run, work)
        self._note(job)
        waiting = asyncio.wrap_future(job)
        waiting.add_done_callback(lambda _: gone.set())
        try:
            return await self._made(waiting)
        except asyncio.CancelledError:
            await self._ended(job)
            raise

    async def in_place(self, work: Callable[[], Made]) -> Made:
        """Does work as `aside`, for a request that counts as one of those that may wait.

        Raises:
            Exception: as `aside`.
            RequestError: also if too many requests wait.
        """
        with self._place():
            return await self.aside(work)

    async def _made(self, waiting: asyncio.Future[Made]) -> Made:
        self._until_close(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._closed:
                raise shutting_down() from None
            raise

    async def _ended(self, job: Future[Any]) -> None:
        """Waits for the end of work that nobody waits for any more, or of the server."""
        if not job.cancel():
            ending = asyncio.wrap_future(job)
            ending.add_done_callback(lambda ending: ending.cancelled() or ending.exception())
            self._until_close(ending)
            await asyncio.wait([ending])

    def _until_close(self, waiting: asyncio.Future[Any]) -> None:
        """Has a future cancelled when the server shuts down."""
        self._awaited.add(waiting)
        waiting.add_done_callback(self._awaited.discard)

    def _note(self, job: Future[Any]) -> None:
        self._started.add(job)
        job.add_done_callback(self._started.discard)

    async def texts(
        self,
        model: ServedModel,
        begin: Callable[[LLM], Sequence[Stream]],
        show: Show,
        key: str | None = None,
    ) -> list[Result]:
        """Generates the texts of one request, one after the other, when it is its turn.

        They end after a round if the task is cancelled. The next request's turn comes when they are
        made, so that a slow client does not make others wait.

        Args:
            model: the model, which is loaded if need be.
            begin: function that checks the request and creates the streams; called on a thread.
            show: called when the request was accepted, with the parts as they come, and now and
                then while there are none.
            key: texts share what was computed with those of the same key; None: with all others
                without one, and `reused` counts only what belongs to the conversation.

        Raises:
            EdgespecError: if `begin` or a text fails.
            RequestError: if too many requests wait, the model cannot be loaded, or the server shuts
                down, also during a text.
        """
        conversations = self._conversations[model.name]
        asked = time.perf_counter()
        loop = asyncio.get_running_loop()
        parts = asyncio.Queue[Part | None]()

        def put(part: Part) -> None:
            loop.call_soon_threadsafe(parts.put_nowait, part)

        def read(choice: int, stream: Stream) -> Result:
            waited = time.perf_counter() - asked
            known = conversations if key is None else None
            result = Reader(choice, stream, put, known).read()
            self.metrics.finished(model.name, result, waited)
            return result

        with self._place() as leave, self.models.claim(model) as claim:
            streams = await self._begin(claim, begin, show)
            for stream in streams:
                stream.share_by(key or "")

            def rounds_made() -> int:
                return sum(len(stream.rounds) for stream in streams)

            def cancel() -> None:
                for stream in streams:
                    stream.cancel()

            def ended() -> None:
                leave()
                self.models.end(claim)
                parts.put_nowait(None)

            job = self._submit(
                lambda: [read(choice, stream) for choice, stream in enumerate(streams)], cancel
            )
            job.add_done_callback(lambda _: loop.call_soon_threadsafe(ended))
            try:
                await show(None)
                while (part := await _next(parts, show)) is not None:
                    await show(part)
            except BaseException:  # the client has disconnected
                rounds = rounds_made()
                await self._stop(job)
                if job.cancelled():
                    self.metrics.unbegun(model.name)
                else:
                    self.metrics.abandoned(rounds_made() - rounds)
                raise
        if job.cancelled():
            raise shutting_down()
        results = job.result()
        if any(result.finish_reason == "cancelled" for result in results):
            raise shutting_down()
        return results

    async def _begin(
        self, claim: Claim, begin: Callable[[LLM], Sequence[Stream]], show: Show
    ) -> Sequence[Stream]:
        """Creates the streams of a request."""
        beginning = asyncio.ensure_future(self._begun(claim, begin))
        patience = _FIRST_SIGN
        try:
            while not (await asyncio.wait([beginning], timeout=patience))[0]:
                await show(None)
                patience = _SIGNS
            return beginning.result()
        except asyncio.CancelledError:  # the client has disconnected
            beginning.cancel()
            self.metrics.unbegun(claim.model.name)
            await asyncio.wait([beginning])
            raise

    async def _begun(self, claim: Claim, begin: Callable[[LLM], Begun]) -> Begun:
        """Begins a request, once its model is loaded."""
        if self._closed:
            raise shutting_down()
        llm = await self._made(claim.loaded)
        return await self.aside(partial(begin, llm))

    async def in_turn(
        self,
        model: ServedModel,
        begin: Callable[[LLM], Begun],
        make: Callable[[Begun, Callable[[], None]], Made],
    ) -> Made:
        """Does work for a request that is no text, when it is its turn.

        Args:
            model: the model, which is loaded if need be.
            begin: function that checks the request; called on a thread.
            make: function that does the work with what `begin` returned; called on a thread. It
                calls its second argument often, which ends it if nobody waits for it any more.

        Raises:
            EdgespecError: if `begin` or `make` fails.
            RequestError: as `texts`.
        """
        gone = threading.Event()

        def check() -> None:
            if gone.is_set():
                raise shutting_down()

        with self._place(), self.models.claim(model) as claim:
            begun = await self._begun(claim, begin)
            job = self._submit(lambda: make(begun, check), gone.set)
            try:
                await asyncio.wait([asyncio.wrap_future(job)])
            except asyncio.CancelledError:  # the client has disconnected
                await self._stop(job)
                raise
        try:
            return job.result()
        except CancelledError:
            raise shutting_down() from None

    @contextmanager
    def _place(self) -> Iterator[Callable[[], None]]:
        """Counts a request until the end of the block, or until what it yields is called."""
        if self._closed:
            raise shutting_down()
        if self._requests >= self._parallel + self._limit:
            raise RequestError(
                429, f"{self.waiting} requests are waiting already: try again later", "queue_full"
            )
        self._requests += 1
        left = False

        def leave() -> None:
            nonlocal left
            self._requests -= not left
            left = True

        try:
            yield leave
        finally:
            leave()

    def _submit(self, work: Callable[[], Made], cancel: Callable[[], None]) -> Future[Made]:
        """Has a thread do the work as soon as one is free."""
        if self._closed:
            raise shutting_down()
        job = self._threads.submit(work)
        self._jobs[job] = cancel
        self._note(job)
        job.add_done_callback(lambda job: self._jobs.pop(job, None))
        return job

    async def _stop(self, job: Future[Made]) -> None:
        """Ends work that nobody waits for any more, and waits for its end."""
        cancel = self._jobs.get(job)
        if not job.cancel() and cancel is not None:
            cancel()
            await asyncio.wait([asyncio.wrap_future(job)])


async def _next(parts: asyncio.Queue[Part | None], show: Show) -> Part | None:
    """Returns the next part; shows now and then that there is none."""
    while True:
        try:
            async with asyncio.timeout(_SIGNS):
                return await parts.get()
        except TimeoutError:
            await show(None)
