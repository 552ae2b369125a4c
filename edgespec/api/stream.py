"""Generation of one text from prompt to result, as a stream of pieces."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from edgespec.api.learning import Learning
from edgespec.api.predictions import prediction_facts
from edgespec.api.prompt_cache import PromptCache
from edgespec.api.result import Clock, GenerationResult
from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import InputError
from edgespec.runtime.decoding.fair_lock import FairLock
from edgespec.runtime.decoding.generate import Limits, Round, steps
from edgespec.runtime.decoding.pipelines import Serial
from edgespec.runtime.decoding.rounds import Rounds, TextRounds
from edgespec.runtime.drafters import Drafter, Prediction, TreeBudget
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.slots import Slot, Slots
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.text.answers import AnswerReader
from edgespec.runtime.text.endings import TextEnd
from edgespec.runtime.text.pieces import Piece
from edgespec.runtime.text.streaming import StreamDecoder
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.environment import peak_rss_mb

if TYPE_CHECKING:
    from edgespec.runtime.sampling.constraint import Constraint


@dataclass(frozen=True)
class Job:
    """Everything one text needs.

    Attributes:
        tokenizer: tokenizer of the target.
        prompt: token ids of the prompt.
        drafter: creates the drafter from the text's runners by role.
        pipeline: creates the pipeline from the target's runner and the drafter.
        sampler: chooses the tokens.
        limits: limits on the length of the text.
        budget: limits on the draft trees.
        end: what ends the text besides its tokens.
        logprobs: see `GenerationOptions`.
        grammar: matcher of the grammar that the text follows, if any.
        prediction: text that was predicted, if drafts are taken from one.
        draft_memory: see `GenerationResult`.
        learning: learns from the text when it has ended; None for a model that does not learn.
        prompts: prompt cache on disk; None if there is none.
        rounds: makes the rounds of all texts.
        slots: all slots for caches.
        slot: slot of the text's session; None if it has no session.
        lock: lock that is held while a text begins and while rounds are made.
        simulated: see `GenerationResult`.
        reader: takes an answer apart; None for plain text.
        shown: special tokens that the reader needs, with their texts.
    """

    tokenizer: Tokenizer
    prompt: list[int]
    drafter: Callable[[Mapping[str, Runner]], Drafter]
    pipeline: Callable[[Runner, Drafter], Serial]
    sampler: Sampler
    limits: Limits
    budget: TreeBudget
    end: TextEnd
    logprobs: int | None
    grammar: Constraint | None
    prediction: Prediction | None
    draft_memory: str | None
    learning: Learning | None
    prompts: PromptCache | None
    rounds: Rounds
    slots: Slots
    slot: Slot | None
    lock: FairLock
    simulated: str | None
    reader: AnswerReader | None = None
    shown: Mapping[int, str] = field(default_factory=dict)


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
        job, limits = self._job, self._job.limits
        text = _Text(job)
        self.clock.start()
        with ExitStack() as entered:
            if job.learning is not None:
                entered.enter_context(job.learning.text())
            # One lock for all of this: the model and its drafters may be closed while it is free.
            with job.lock:
                length = min(len(job.prompt) + limits.max_new_tokens, limits.context_length)
                slot = entered.enter_context(job.slots.enter(job.slot, job.prompt, length))
                runners, target = slot.runners, slot.runners[TARGET]
                kept = None if job.prompts is None else job.prompts.begin(target, job.prompt)
                reused = target.known(job.prompt)
                drafter = job.drafter(runners)
                learned = None if job.learning is None else job.learning.in_use
                pipeline = job.pipeline(target, drafter)
                made = steps(
                    pipeline, job.sampler, job.prompt,
                    limits=limits, budget=job.budget, logprobs=job.logprobs, grammar=job.grammar,
                )  # fmt: skip
                models = [runner.model for runner in runners.values()]
                rounds = TextRounds(
                    job.rounds, pipeline, made, models, job.prompt, self._cancelled.is_set,
                    _nothing if kept is None else kept.look,
                )  # fmt: skip
                job.rounds.add(rounds)
            try:
                yield from self._read(rounds, text)
            finally:
                rounds.close()
        self.result = GenerationResult(
            text="".join(piece.text for piece in text.pieces),
            tokens=text.tokens,
            prompt_tokens=len(job.prompt),
            finish_reason=self._finish_reason(text),
            seed=job.sampler.seed,
            draft=drafter.name,
            draft_memory=job.draft_memory,
            learned=learned,
            engine=target.model.device,
            exact=target.model.exact,
            draft_engine=runners[DRAFT].model.device if DRAFT in runners else None,
            peak_rss_mb=peak_rss_mb(),
            reused=reused,
            logprobs=tuple(self.logprobs),
            simulated=job.simulated,
            reasoning="".join(piece.reasoning for piece in text.pieces),
            reasoning_tokens=0 if job.reader is None else job.reader.reasoning_tokens,
            tool_calls=() if job.reader is None else tuple(job.reader.calls),
            **prediction_facts(job.prediction, text.tokens),
            **self.clock.facts(len(text.tokens)),
        )
        if job.learning is not None:
            job.learning.between_texts()

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
            return "tool_calls" if self._job.reader and self._job.reader.calls else "stop"
        if made >= limits.max_new_tokens:
            return "length"
        if len(self._job.prompt) + made >= limits.context_length:
            return "context"
        return "cancelled"


def _nothing() -> None:
    """Is done behind each round of a text that is not stored."""


class _Text:
    """Turns tokens into text: whole characters only, cut where it ends, without an end token."""

    def __init__(self, job: Job) -> None:
        self._decoder = StreamDecoder(job.tokenizer, job.prompt, job.shown)
        self._end = job.end
        self._reader = job.reader
        # An end token may be a mark that the reader needs, such as one behind a call.
        self._left_out = job.limits.stop_ids - job.shown.keys()
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
