"""Generation of the texts of all requests, in order, on threads."""

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
from edgespec.runtime.text.answers import CallPiece
from edgespec.server.metrics import Metrics
from edgespec.server.queue import Queue
from edgespec.server.refusals import shutting_down


@dataclass(frozen=True)
class Part:
    """A piece of a text with its statistics.

    Attributes:
        text: piece of text; it may be empty if there is reasoning or a call.
        logprobs: log-probabilities of the tokens since the last part; empty if not requested.
        rounds: rounds since the last part, without the prompt's.
        reasoning: piece of reasoning.
        calls: pieces of tool calls.
    """

    text: str
    logprobs: tuple[TokenLogprobs, ...]
    rounds: tuple[Round, ...]
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()


Show = Callable[[Part], Awaitable[None]]


class TextService:
    """Generates the texts of all requests.

    Args:
        llm: model to use.
        parallel: number of texts at once; they take turns, round by round.
        limit: maximum number of waiting requests.

    Attributes:
        llm: model in use.
        queue: queue of the requests.
        metrics: metrics of the server.
    """

    def __init__(self, llm: LLM, parallel: int, limit: int) -> None:
        self.llm = llm
        self.queue = Queue(parallel, limit)
        self.metrics = Metrics(self.queue)
        self._threads = ThreadPoolExecutor(parallel, "edgespec-text")
        self._reading: set[TextStream] = set()
        self._closed = False

    def close(self) -> None:
        """Ends texts after their current round, and refuses waiting and further requests."""
        self._closed = True
        self.queue.close()
        for stream in self._reading:
            stream.cancel()

    async def text(self, begin: Callable[[], TextStream], show: Show) -> GenerationResult:
        """Generates a text when it is its turn; it ends after a round if the task is cancelled.

        Args:
            begin: function that checks the request and creates the stream; called on a thread.
            show: called with the parts as they come.

        Raises:
            EdgespecError: if `begin` or the text fails.
            RequestError: if too many requests wait, or the server shuts down, also during the text.
        """
        asked = time.perf_counter()
        with ExitStack() as place:
            turn = place.enter_context(self.queue.place())
            try:
                stream = await asyncio.to_thread(begin)
                await turn
            except asyncio.CancelledError:  # the client has disconnected
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
        """Reads a text on a thread to its end, or to the end of a round if this task is cancelled.

        The text leaves the queue when it is finished, so that a slow client does not make others
        wait.
        """
        loop, parts = asyncio.get_running_loop(), asyncio.Queue[Part | None]()

        def read() -> GenerationResult:
            tokens_sent = rounds_sent = 0
            try:
                with closing(stream):
                    for piece in stream.pieces():
                        logprobs = tuple(stream.logprobs[tokens_sent:])
                        rounds = tuple(stream.rounds[rounds_sent:])
                        tokens_sent += len(logprobs)
                        rounds_sent += len(rounds)
                        part = Part(piece.text, logprobs, rounds, piece.reasoning, piece.calls)
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
        except BaseException:  # the client has disconnected
            rounds = len(stream.rounds)
            stream.cancel()
            await asyncio.wait([reader])
            self.metrics.abandoned(len(stream.rounds) - rounds)
            raise
        finally:
            self._reading.discard(stream)
        return await reader
