"""Generation of the texts of all requests, in order, on threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TypeVar

from edgespec.api.generation import GenerationStream
from edgespec.api.llm import LLM
from edgespec.api.result import GenerationResult
from edgespec.runtime.decoding.generate import Round
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.text.streaming import CallPiece
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
        choice: which of a request's texts it belongs to.
        reasoning: piece of reasoning.
        calls: pieces of tool calls.
    """

    text: str
    logprobs: tuple[TokenLogprobs, ...]
    rounds: tuple[Round, ...]
    choice: int = 0
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()


Show = Callable[[Part], Awaitable[None]]

Begun = TypeVar("Begun")
Made = TypeVar("Made")


class TextService:
    """Generates the texts of all requests.

    Args:
        llm: model to use.
        parallel: number of texts at once; they share passes of the target.
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
        self._reading: set[GenerationStream] = set()
        self._closed = False

    def close(self) -> None:
        """Ends texts after their current round, and refuses waiting and further requests."""
        self._closed = True
        self.queue.close()
        for stream in self._reading:
            stream.cancel()

    async def text(self, begin: Callable[[], GenerationStream], show: Show) -> GenerationResult:
        """Generates one text; see `texts`."""
        [result] = await self.texts(lambda: [begin()], show)
        return result

    async def texts(
        self, begin: Callable[[], Sequence[GenerationStream]], show: Show
    ) -> list[GenerationResult]:
        """Generates the texts of one request, one after the other, when it is its turn.

        They end after a round if the task is cancelled.

        Args:
            begin: function that checks the request and creates the streams; called on a thread.
            show: called with the parts as they come.

        Raises:
            EdgespecError: if `begin` or a text fails.
            RequestError: if too many requests wait, or the server shuts down, also during a text.
        """
        asked = time.perf_counter()
        with ExitStack() as place:
            turn = place.enter_context(self.queue.place())
            try:
                streams = await asyncio.to_thread(begin)
                await turn
            except asyncio.CancelledError:  # the client has disconnected
                self.metrics.unbegun()
                raise
            if self._closed:
                raise shutting_down()
            results = await self._read(streams, show, asked, place.close)
        if any(result.finish_reason == "cancelled" for result in results):
            raise shutting_down()
        return results

    async def in_turn(
        self,
        begin: Callable[[], Begun],
        make: Callable[[Begun, Callable[[], None]], Made],
    ) -> Made:
        """Does work for a request that is no text, when it is its turn.

        Args:
            begin: function that checks the request; called on a thread.
            make: function that does the work with what `begin` returned; called on a thread. It
                calls its second argument often, which ends it if nobody waits for it any more.

        Raises:
            EdgespecError: if `begin` or `make` fails.
            RequestError: as `texts`.
        """
        gone = threading.Event()

        def check() -> None:
            if gone.is_set() or self._closed:
                raise shutting_down()

        with self.queue.place() as turn:
            begun = await asyncio.to_thread(begin)
            await turn
            check()
            work = asyncio.get_running_loop().run_in_executor(self._threads, make, begun, check)
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:  # the client has disconnected
                gone.set()
                await asyncio.wait([work])
                work.exception()  # nobody is to be told
                raise

    async def _read(
        self,
        streams: Sequence[GenerationStream],
        show: Show,
        asked: float,
        leave: Callable[[], None],
    ) -> list[GenerationResult]:
        """Reads texts on a thread to their end, or to the end of a round if this task is cancelled.

        They leave the queue when the last one is finished, so that a slow client does not make
        others wait.
        """
        loop, parts = asyncio.get_running_loop(), asyncio.Queue[Part | None]()

        def read(choice: int, stream: GenerationStream) -> GenerationResult:
            waited = time.perf_counter() - asked
            tokens_sent = rounds_sent = 0
            with closing(stream):
                for piece in stream.pieces():
                    logprobs = tuple(stream.logprobs[tokens_sent:])
                    rounds = tuple(stream.rounds[rounds_sent:])
                    tokens_sent += len(logprobs)
                    rounds_sent += len(rounds)
                    part = Part(piece.text, logprobs, rounds, choice, piece.reasoning, piece.calls)
                    loop.call_soon_threadsafe(parts.put_nowait, part)
            self.metrics.finished(stream.result, waited)
            return stream.result

        def read_all() -> list[GenerationResult]:
            try:
                return [read(choice, stream) for choice, stream in enumerate(streams)]
            finally:
                loop.call_soon_threadsafe(parts.put_nowait, None)

        def rounds_made() -> int:
            return sum(len(stream.rounds) for stream in streams)

        self._reading.update(streams)
        reader = loop.run_in_executor(self._threads, read_all)
        reader.add_done_callback(lambda _: leave())
        try:
            while (part := await parts.get()) is not None:
                await show(part)
        except BaseException:  # the client has disconnected
            rounds = rounds_made()
            for stream in streams:
                stream.cancel()
            await asyncio.wait([reader])
            self.metrics.abandoned(rounds_made() - rounds)
            raise
        finally:
            self._reading.difference_update(streams)
        return await reader
