"""Who waits, and who is answered: who asks first is served first, each on a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from edgespec.llm.llm import LLM
from edgespec.llm.result import Result
from edgespec.llm.stream import Stream
from edgespec.serve.metrics import Metrics
from edgespec.serve.models import Claim, Models
from edgespec.serve.parts import Conversations, Part, Reader
from edgespec.serve.refusals import RequestError, shutting_down
from edgespec.serve.served_model import ServedModel
from edgespec.serve.threads import SideThreads

if TYPE_CHECKING:
    from edgespec.mcp.toolbox import Toolbox

Show = Callable[[Part | None], Awaitable[None]]
"""Shows a client a part; None shows that its request was accepted, and that it still waits."""

_FIRST_SIGN = 2.0  # seconds until a client hears that its request is still being looked at
_SIGNS = 5.0  # seconds between further signs

S = TypeVar("S")
T = TypeVar("T")


class RequestQueue:
    """Makes what requests ask for, on threads that share the engine's passes.

    All methods belong to one event loop. The engine lets a text begin when memory has room for it.

    Args:
        models: models to use.
        parallel: number of requests at once.
        limit: maximum number of waiting requests.
        body_limit: maximum number of bytes in a request's body.
        toolbox: tools that the page offers to models; None: there are none.

    Attributes:
        metrics: metrics of the server.
        side: does what is no text.
    """

    def __init__(
        self,
        models: Models,
        parallel: int,
        limit: int,
        body_limit: int = 4 << 20,
        toolbox: Toolbox | None = None,
    ) -> None:
        self.models = models
        self.body_limit = body_limit
        self.toolbox = toolbox
        self.metrics = Metrics(models, lambda: self.running, lambda: self.waiting)
        self.side = SideThreads()
        self._parallel = parallel
        self._limit = limit
        self._threads = ThreadPoolExecutor(parallel, "edgespec-text")
        self._requests = 0
        self._jobs: dict[Future[Any], Callable[[], None]] = {}  # and what ends them early
        self._conversations = defaultdict[str, Conversations](Conversations)  # by model

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
        return bool(self._jobs) or self.side.busy or self.models.busy

    def close(self) -> None:
        """Ends texts after their current round, and refuses waiting and further requests."""
        self.models.stop()
        self.side.close()
        for job, cancel in tuple(self._jobs.items()):
            if not job.cancel():
                cancel()
        self._threads.shutdown(wait=False)

    async def in_place(self, work: Callable[[], T]) -> T:
        """Does work on a side thread, for a request that counts as one of those that may wait.

        Raises:
            Exception: as `SideThreads.do`.
            RequestError: also if too many requests wait.
        """
        with self._place():
            return await self.side.do(work)

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
            key: the key of the request's cache; without one, `reused` counts only what belongs to
                the conversation.

        Raises:
            EdgespecError: if `begin` or a text fails.
            RequestError: if too many requests wait, the model cannot be loaded, or the server shuts
                down, also during a text.
        """
        finished = partial(self._finished, model.name, time.perf_counter())
        known = None if key is not None else self._conversations[model.name]
        with self._place() as place, self.models.claim(model) as claim:
            streams = await self._begin(claim, begin, show)
            texts = _Texts(streams, known, finished)
            job = self._submit(texts.make, texts.cancel)

            def ended() -> None:
                place.leave()
                self.models.end(claim)
                texts.parts.put_nowait(None)

            job.add_done_callback(lambda _: texts.loop.call_soon_threadsafe(ended))
            try:
                await texts.show(show)
            except BaseException:  # the client has disconnected
                await self._abandon(job, texts, model.name)
                raise
        results = _made(job)
        if any(result.finish_reason == "cancelled" for result in results):
            raise shutting_down()
        return results

    def _finished(self, model: str, asked: float, begun: float, result: Result) -> None:
        """Counts a text whose request came at one time, and which began at another."""
        self.metrics.finished(model, result, begun - asked)

    async def _abandon(self, job: Future[Any], texts: _Texts, model: str) -> None:
        """Ends texts that nobody waits for any more."""
        rounds = texts.rounds
        await self._stop(job)
        if job.cancelled():
            self.metrics.unbegun(model)
        else:
            self.metrics.abandoned(texts.rounds - rounds)

    async def _begin(
        self, claim: Claim, begin: Callable[[LLM], Sequence[Stream]], show: Show
    ) -> Sequence[Stream]:
        """Creates the streams of a request."""
        beginning = asyncio.ensure_future(self._loaded(claim, begin))
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

    async def _loaded(self, claim: Claim, begin: Callable[[LLM], S]) -> S:
        """Begins a request, once its model is loaded."""
        self.side.require_open()
        llm = await self.side.until_closed(claim.loaded)
        return await self.side.do(partial(begin, llm))

    async def in_turn(
        self,
        model: ServedModel,
        begin: Callable[[LLM], S],
        make: Callable[[S, Callable[[], None]], T],
    ) -> T:
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
            begun = await self._loaded(claim, begin)
            job = self._submit(lambda: make(begun, check), gone.set)
            try:
                await asyncio.wait([asyncio.wrap_future(job)])
            except asyncio.CancelledError:  # the client has disconnected
                await self._stop(job)
                raise
        return _made(job)

    def _place(self) -> _Place:
        """Counts a request until the end of a block, or until it leaves.

        Raises:
            RequestError: if too many requests wait, or the server shuts down.
        """
        self.side.require_open()
        if self._requests >= self._parallel + self._limit:
            raise RequestError(
                429, f"{self.waiting} requests are waiting already: try again later", "queue_full"
            )
        return _Place(self._count)

    def _count(self, number: int) -> None:
        self._requests += number

    def _submit(self, work: Callable[[], T], cancel: Callable[[], None]) -> Future[T]:
        """Has a thread do the work as soon as one is free."""
        self.side.require_open()
        job = self._threads.submit(work)
        self._jobs[job] = cancel
        job.add_done_callback(lambda job: self._jobs.pop(job, None))
        return job

    async def _stop(self, job: Future[Any]) -> None:
        """Ends work that nobody waits for any more, and waits for its end."""
        cancel = self._jobs.get(job)
        if not job.cancel() and cancel is not None:
            cancel()
            await asyncio.wait([asyncio.wrap_future(job)])


class _Place:
    """A request that counts from its creation until it leaves."""

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count
        self._is_left = False
        count(1)

    def __enter__(self) -> _Place:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Counts no more."""
        if not self._is_left:
            self._is_left = True
            self._count(-1)


class _Texts:
    """The texts of one request, which a thread makes one after the other.

    Args:
        streams: the texts, which have not begun.
        known: what the client may know of earlier prompts; see `Reader`.
        finished: called on the thread with the time when a text began, and the text.

    Attributes:
        loop: the event loop of the request.
        parts: what there is to show; None behind the last one.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        known: Conversations | None,
        finished: Callable[[float, Result], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.parts = asyncio.Queue[Part | None]()
        self._streams = streams
        self._known = known
        self._finished = finished

    @property
    def rounds(self) -> int:
        """The number of rounds so far."""
        return sum(len(stream.rounds) for stream in self._streams)

    def make(self) -> list[Result]:
        """Makes the texts; called on the thread."""
        return [self._read(choice, stream) for choice, stream in enumerate(self._streams)]

    def cancel(self) -> None:
        """Ends the texts after their current round; any thread may call it."""
        for stream in self._streams:
            stream.cancel()

    async def show(self, show: Show) -> None:
        """Shows that the request was accepted, the parts, and now and then that there is none."""
        await show(None)
        while True:
            try:
                async with asyncio.timeout(_SIGNS):
                    part = await self.parts.get()
            except TimeoutError:
                await show(None)
                continue
            if part is None:
                return
            await show(part)

    def _read(self, choice: int, stream: Stream) -> Result:
        begun = time.perf_counter()
        result = Reader(choice, stream, self._put, self._known).read()
        self._finished(begun, result)
        return result

    def _put(self, part: Part) -> None:
        self.loop.call_soon_threadsafe(self.parts.put_nowait, part)


def _made(job: Future[T]) -> T:
    """Returns what a job has made.

    Raises:
        Exception: the job's.
        RequestError: if the server shuts down, so that it was cancelled.
    """
    try:
        return job.result()
    except CancelledError:
        raise shutting_down() from None
