"""Generation of one text from prompt to result, as a stream of pieces."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

from edgespec.api.job import Job
from edgespec.api.predictions import prediction_facts
from edgespec.api.result import Clock, GenerationResult
from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import InputError
from edgespec.runtime.decoding.generate import Round, steps
from edgespec.runtime.decoding.rounds import TextRounds
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.text.pieces import Piece
from edgespec.runtime.text.streaming import StreamDecoder
from edgespec.system.environment import peak_rss_mb


class TextStream:
    """Pieces of a text as they are made; iterate over it once, then read `result`.

    `cancel` may be called from another thread or a signal handler: the text then ends after the
    current round.

    Attributes:
        generation: the text that is being made; it advances only while the stream is read.
    """

    def __init__(self, job: Job) -> None:
        self.generation = TextGeneration(job)
        self._pieces = self.generation.pieces()
        self._texts = (piece.text for piece in self._pieces if piece.text)

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """Log-probabilities of the tokens so far; empty if they were not requested."""
        return self.generation.logprobs

    @property
    def rounds(self) -> Sequence[Round]:
        """The rounds so far, without the prompt's."""
        return self.generation.clock.rounds

    @property
    def tokens(self) -> int:
        """The number of new tokens so far, in rounds; of a finished text all that it has."""
        if self.generation.result is not None:
            return self.generation.result.new_tokens
        return sum(len(step.tokens) for step in self.rounds)

    @property
    def result(self) -> GenerationResult:
        """The finished text.

        Raises:
            InputError: while the stream has not been read to its end.
        """
        if self.generation.result is None:
            raise InputError("the stream has no result yet: read it to its end")
        return self.generation.result

    def finish(self) -> GenerationResult:
        """Reads the stream to its end and returns the finished text."""
        for _ in self._pieces:
            pass
        return self.result

    def cancel(self) -> None:
        """Ends the text after the current round."""
        self.generation.cancel()

    def __iter__(self) -> Iterator[str]:
        """Returns the pieces of text; none is empty, and together they are `result.text`."""
        return self._texts

    def pieces(self) -> Iterator[Piece]:
        """Returns the pieces with all that an answer consists of, instead of its text alone."""
        return self._pieces

    def close(self) -> None:
        """Ends the text at once and frees its caches for other texts.

        A finished text stays as it is. Unlike `cancel`, only the thread that reads the stream may
        call it.
        """
        self.cancel()
        self._pieces.close()

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yields the same pieces for `async for`, made on threads so that the event loop goes on.

        Leaving the loop early cancels the text and frees its caches for other texts.
        """
        import asyncio  # only here, since loading it takes 20 ms

        def next_step() -> asyncio.Future[str]:
            # Not a task: the end of the event loop would cancel it while its thread goes on.
            step = partial(contextvars.copy_context().run, next, self._texts, "")
            return asyncio.get_running_loop().run_in_executor(None, step)

        step = next_step()
        try:
            while piece := await asyncio.shield(step):
                yield piece
                step = next_step()
        finally:
            self.cancel()
            interrupted = None
            while not step.done():  # a round is being made
                try:
                    await asyncio.wait([step])
                except asyncio.CancelledError as error:  # cancelled again
                    interrupted = error
            for _ in self._pieces:
                pass
            if interrupted is not None:
                raise interrupted


class TextGeneration:
    """A text that is being made.

    It does not refer to the generator of its pieces, so that the generator is closed when its
    reader goes away.

    Args:
        job: everything that the text needs.

    Attributes:
        logprobs: log-probabilities of the tokens so far; empty if they were not requested.
        clock: rounds and times.
        result: the finished text; None before that.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._cancelled = threading.Event()
        self.logprobs: list[TokenLogprobs] = []
        self.clock = Clock()
        self.result: GenerationResult | None = None

    def cancel(self) -> None:
        """Ends the text after the current round."""
        self._cancelled.set()

    def pieces(self) -> Generator[Piece]:
        """Generates the text; yields its pieces, none of which is empty. Call it only once."""
        job = self._job
        asked, shared, limits = job.asked, job.shared, job.limits
        prompt, reader = asked.prompt, asked.reader
        text = _Text(job)
        self.clock.start()
        with ExitStack() as entered:
            # One lock for all of this: the model and its drafters may be closed while it is free.
            with shared.lock:
                length = min(len(prompt) + limits.max_new_tokens, limits.context_length)
                slot = entered.enter_context(shared.slots.enter(job.slot, prompt, length))
                runners, target = slot.runners, slot.runners[TARGET]
                kept = None if shared.prompts is None else shared.prompts.begin(target, prompt)
                reused = target.known(prompt)
                drafter = job.drafter(runners)
                pipeline = shared.pipeline(target, drafter)
                made = steps(
                    pipeline, job.sampler, prompt,
                    limits=limits, budget=job.budget, logprobs=job.logprobs, grammar=asked.grammar,
                )  # fmt: skip
                models = [runner.model for runner in runners.values()]
                rounds = TextRounds(
                    shared.rounds, pipeline, made, models, prompt, self._cancelled.is_set,
                    _nothing if kept is None else kept.look,
                )  # fmt: skip
                shared.rounds.add(rounds)
            try:
                yield from self._read(rounds, text)
            finally:
                rounds.close()
        self.result = GenerationResult(
            text="".join(piece.text for piece in text.pieces),
            tokens=text.tokens,
            prompt_tokens=len(prompt),
            finish_reason=self._finish_reason(text),
            seed=job.sampler.seed,
            draft=drafter.name,
            draft_memory=job.draft_memory,
            engine=target.model.device,
            exact=target.model.exact,
            draft_engine=runners[DRAFT].model.device if DRAFT in runners else None,
            peak_rss_mb=peak_rss_mb(),
            reused=reused,
            logprobs=tuple(self.logprobs),
            reasoning="".join(piece.reasoning for piece in text.pieces),
            reasoning_tokens=0 if reader is None else reader.reasoning_tokens,
            tool_calls=() if reader is None else tuple(reader.calls),
            **prediction_facts(job.prediction, text.tokens),
            **self.clock.facts(len(text.tokens)),
        )

    def _read(self, rounds: TextRounds, text: _Text) -> Generator[Piece]:
        clock = self.clock
        while not text.stopped and (made := rounds.next()) is not None:
            step, engine_seconds = made
            clock.round(step, engine_seconds)
            before = len(text.tokens)
            piece = text.push(step.tokens)
            if text.stopped:
                clock.cut(len(text.tokens) - before)
            self.logprobs += step.logprobs[: len(text.tokens) - len(self.logprobs)]
            if piece:
                yield piece
        if piece := text.flush():
            yield piece

    def _finish_reason(self, text: _Text) -> str:
        limits, made = self._job.limits, len(text.tokens)
        if text.stopped or (made and text.tokens[-1] in limits.stop_ids):
            reader = self._job.asked.reader
            return "tool_calls" if reader and reader.calls else "stop"
        if made >= limits.max_new_tokens:
            return "length"
        if len(self._job.asked.prompt) + made >= limits.context_length:
            return "context"
        return "cancelled"


def _nothing() -> None:
    """Is done behind each round of a text that is not stored."""


class _Text:
    """Turns tokens into text: whole characters only, cut where it ends, without an end token."""

    def __init__(self, job: Job) -> None:
        asked = job.asked
        self._decoder = StreamDecoder(job.shared.tokenizer, asked.prompt, asked.shown)
        self._end = job.end
        self._reader = asked.reader
        # An end token may be a mark that the reader needs, such as one behind a call.
        self._left_out = job.limits.stop_ids - asked.shown.keys()
        self.tokens: list[int] = []
        self.pieces: list[Piece] = []
        self.stopped = False

    def push(self, tokens: Sequence[int]) -> Piece:
        """Adds tokens and returns the text that is now final; drops tokens after its end."""
        piece = Piece()
        for token in tokens:
            self.tokens.append(token)
            if token not in self._left_out:
                piece += self._taken_apart(self._show(self._decoder.push(token)), 1)
            if self.stopped:
                break
        self.pieces.append(piece)
        return piece

    def flush(self) -> Piece:
        """Returns the rest of the text after the last token."""
        rest = self._show(self._decoder.flush())
        held = self._end.flush()
        piece = self._taken_apart(rest + held, 0)
        if self._reader is not None:
            piece += self._reader.finish()
        self.pieces.append(piece)
        return piece

    def _show(self, text: str) -> str:
        piece, self.stopped = self._end.push(text)
        return piece

    def _taken_apart(self, text: str, tokens: int) -> Piece:
        return Piece(text) if self._reader is None else self._reader.push(text, tokens)
