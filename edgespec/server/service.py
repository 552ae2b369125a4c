"""Requests become texts, each read by a thread in its turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass

from edgespec.api.llm import LLM
from edgespec.api.result import GenerationResult
from edgespec.api.stream import TextStream
from edgespec.runtime.decoding.generate import Round
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.server.metrics import Metrics
from edgespec.server.queue import Queue
from edgespec.server.refusals import shutting_down


@dataclass(frozen=True)
class Part:
    """What came of a text at a time.

    Attributes:
        text: not empty.
        logprobs: of the tokens that have come since the last part, where they were asked for.
        rounds: since the last part; of the prompt's own there is none.
    """

    text: str
    logprobs: tuple[TokenLogprobs, ...]
    rounds: tuple[Round, ...]


Show = Callable[[Part], Awaitable[None]]


class Desk:
    """Makes the texts of all requests.

    Args:
        llm: which makes them.
        parallel: texts at once; they take turns, round by round.
        limit: how many may wait.

    Attributes:
        queue: who waits.
        metrics: what was made.
    """

    def __init__(self, llm: LLM, parallel: int, limit: int) -> None:
        self.llm = llm
        self.queue = Queue(parallel, limit)
        self.metrics = Metrics(self.queue)
        self._threads = ThreadPoolExecutor(parallel, "edgespec-text")
        self._reading: set[TextStream] = set()
        self._closed = False

    def close(self) -> None:
        """End texts after their present round; who waits, and who still comes, is refused."""
        self._closed = True
        self.queue.close()
        for stream in self._reading:
            stream.cancel()

    async def text(self, begin: Callable[[], TextStream], show: Show) -> GenerationResult:
        """Make a text in its turn; it ends after a round if the task is cancelled.

        Args:
            begin: checks the request and gives its text, on a thread.
            show: is given the parts as they come.

        Raises:
            EdgespecError: what `begin` or the text raises.
            RequestError: if too many wait, or the server shuts down, in the midst of the text too.
        """
        asked = time.perf_counter()
        with ExitStack() as place:
            turn = place.enter_context(self.queue.place())
            try:
                stream = await asyncio.to_thread(begin)
                await turn
            except asyncio.CancelledError:  # the client has gone
                self.metrics.unbegun()
                raise
            if self._closed:
                raise shutting_down()
            result = await self._read(stream, show, time.perf_counter() - asked, place.close)
        if result.finish_reason == "cancelled":
            raise shutting_down()
        return result

    async def _read(
        self, stream: TextStream, show: Show, waited: float, leave: Callable[[], None]
    ) -> GenerationResult:
        """Read a text on a thread, to its end, or until this task is cancelled and a round over.

        The text leaves its place when it is made: a client that reads slowly keeps nobody waiting.
        """
        loop, parts = asyncio.get_running_loop(), asyncio.Queue[Part | None]()

        def read() -> GenerationResult:
            told = made = 0
            try:
                with closing(stream):
                    for piece in stream:
                        logprobs, rounds = stream.logprobs[told:], stream.rounds[made:]
                        told, made = told + len(logprobs), made + len(rounds)
                        part = Part(piece, tuple(logprobs), tuple(rounds))
                        loop.call_soon_threadsafe(parts.put_nowait, part)
                self.metrics.finished(stream.result, waited)
                return stream.result
            finally:
                loop.call_soon_threadsafe(parts.put_nowait, None)

        self._reading.add(stream)
        reader = loop.run_in_executor(self._threads, read)
        reader.add_done_callback(lambda _: leave())
        try:
            while (part := await parts.get()) is not None:
                await show(part)
        except BaseException:  # the client has gone
            rounds = len(stream.rounds)
            stream.cancel()
            await asyncio.wait([reader])
            self.metrics.abandoned(len(stream.rounds) - rounds)
            raise
        finally:
            self._reading.discard(stream)
        return await reader
