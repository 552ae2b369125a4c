"""One text from prompt to result: tokens become pieces of text as rounds come in."""

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
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from edgespec.api.result import Clock, GenerationResult
from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import InputError
from edgespec.runtime.decoding.fair_lock import FairLock
from edgespec.runtime.decoding.generate import Limits, Round, generate
from edgespec.runtime.decoding.pipelines import Serial
from edgespec.runtime.drafters import Drafter, TreeBudget
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.slots import Slot, Slots
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.text.tokenizer import StopMatcher, StreamDecoder, Tokenizer
from edgespec.system.environment import peak_rss_mb

if TYPE_CHECKING:
    from edgespec.runtime.execution.model import Model
    from edgespec.runtime.sampling.grammar import GrammarMatcher


@dataclass(frozen=True)
class Job:
    """Everything one text needs.

    Attributes:
        tokenizer: of both models.
        prompt: token ids.
        drafter: makes who guesses, for the text in each role's model.
        pipeline: makes of both what a round is.
        sampler: chooses.
        limits: where the text ends at the latest.
        budget: of the draft trees.
        stop: strings that end the text.
        logprobs: see `generate`.
        grammar: state of the text in its grammar, if it follows one.
        draft_memory: see `GenerationResult`.
        slots: where its caches come from.
        slot: of them, the one of the text's session; None: it has none.
        lock: other texts of the same models wait while a round of this one is made.
        simulated: see `GenerationResult`.
    """

    tokenizer: Tokenizer
    prompt: list[int]
    drafter: Callable[[Mapping[str, Runner]], Drafter]
    pipeline: Callable[[Runner, Drafter], Serial]
    sampler: Sampler
    limits: Limits
    budget: TreeBudget
    stop: tuple[str, ...]
    logprobs: int | None
    grammar: GrammarMatcher | None
    draft_memory: str | None
    slots: Slots
    slot: Slot | None
    lock: FairLock
    simulated: str | None


class TextStream:
    """Pieces of a text as they are made; iterate over it once, then read `result`.

    `cancel` may be called from another thread or a signal handler: the text then ends after the
    round that is under way.

    Attributes:
        under_way: the text; it goes on for as long as somebody reads the stream.
    """

    def __init__(self, job: Job) -> None:
        self.under_way = TextUnderWay(job)
        self._pieces = self.under_way.pieces()

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """Of the tokens so far, where they were asked for."""
        return self.under_way.logprobs

    @property
    def rounds(self) -> Sequence[Round]:
        """The rounds so far, the prompt's left out."""
        return self.under_way.clock.rounds

    @property
    def result(self) -> GenerationResult:
        """The finished text.

        Raises:
            InputError: while the stream has not been read to its end.
        """
        if self.under_way.result is None:
            raise InputError("the stream has no result yet: read it to its end")
        return self.under_way.result

    def finish(self) -> GenerationResult:
        """Read it to its end."""
        for _ in self._pieces:
            pass
        return self.result

    def cancel(self) -> None:
        """End the text after the present round."""
        self.under_way.cancel()

    def __iter__(self) -> Iterator[str]:
        """Pieces of text, none of them empty, which together are `result.text`."""
        return self._pieces

    def close(self) -> None:
        """End the text where it is, and let others have its caches; a finished one stays as it is.

        Unlike `cancel`, only for the thread that reads the stream.
        """
        self.cancel()
        self._pieces.close()

    async def __aiter__(self) -> AsyncIterator[str]:
        """The same pieces for `async for`, made on threads so that the event loop goes on.

        Whoever leaves the loop early cancels the text, and others may then have its caches.
        """
        import asyncio  # only here: it takes 20 ms to load, which few need

        def next_step() -> asyncio.Future[str]:
            # No task, which the end of the event loop would cancel while its thread goes on.
            step = partial(contextvars.copy_context().run, next, self._pieces, "")
            return asyncio.get_running_loop().run_in_executor(None, step)

        step = next_step()
        try:
            while piece := await asyncio.shield(step):
                yield piece
                step = next_step()
        finally:
            self.cancel()
            interrupted = None
            while not step.done():  # a round is under way
                try:
                    await asyncio.wait([step])
                except asyncio.CancelledError as error:  # once more
                    interrupted = error
            for _ in self._pieces:
                pass
            if interrupted is not None:
                raise interrupted


class TextUnderWay:
    """What is made of a job. Its pieces are only their reader's, so that they end when it goes.

    Attributes:
        logprobs: of the tokens so far, where they were asked for.
        clock: its rounds and times.
        result: of the finished text; None before.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._cancelled = threading.Event()
        self.logprobs: list[TokenLogprobs] = []
        self.clock = Clock()
        self.result: GenerationResult | None = None

    def cancel(self) -> None:
        """End it after the present round."""
        self._cancelled.set()

    def pieces(self) -> Generator[str]:
        """Make it, once: pieces of text, none of them empty."""
        job, limits = self._job, self._job.limits
        text = _Text(job.tokenizer, job.prompt, job.stop)
        self.clock.start()
        with ExitStack() as entered:
            # One turn for all of it: between two the model may be closed, and what drafts with it.
            with job.lock:
                length = min(len(job.prompt) + limits.max_new_tokens, limits.context_length)
                slot = entered.enter_context(job.slots.enter(job.slot, job.prompt, length))
                runners, target = slot.runners, slot.runners[TARGET]
                reused = target.known(job.prompt)
                drafter = job.drafter(runners)
                rounds = generate(
                    job.pipeline(target, drafter), job.sampler, job.prompt,
                    limits=limits, budget=job.budget, logprobs=job.logprobs, grammar=job.grammar,
                )  # fmt: skip
            yield from self._read(rounds, [runner.model for runner in runners.values()], text)
        self.result = GenerationResult(
            text="".join(text.pieces),
            tokens=text.tokens,
            prompt_tokens=len(job.prompt),
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
            simulated=job.simulated,
            **self.clock.facts(len(text.tokens)),
        )

    def _read(
        self, rounds: Iterator[Round], models: Sequence[Model], text: _Text
    ) -> Generator[str]:
        lock, clock = self._job.lock, self.clock
        while not (text.stopped or self._cancelled.is_set()):
            with lock:  # for which it may have waited long
                step = None if self._cancelled.is_set() else clock.round(rounds, models)
            if step is None:
                break
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
            return "stop"
        if made >= limits.max_new_tokens:
            return "length"
        if len(self._job.prompt) + made >= limits.context_length:
            return "context"
        return "cancelled"


class _Text:
    """Tokens to text: whole characters, cut before a stop string."""

    def __init__(self, tokenizer: Tokenizer, prompt: list[int], stop: Sequence[str]) -> None:
        self._decoder = StreamDecoder(tokenizer, prompt)
        self._matcher = StopMatcher(stop)
        self._stops = bool(stop)
        self.tokens: list[int] = []
        self.pieces: list[str] = []
        self.stopped = False

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens make final; those behind a stop string are dropped."""
        if not self._stops:
            self.tokens += tokens
            return self._show(self._decoder.push(*tokens))
        text = ""
        for token in tokens:
            self.tokens.append(token)
            text += self._show(self._decoder.push(token))
            if self.stopped:
                break
        return text

    def flush(self) -> str:
        """The rest, once no token follows."""
        rest = self._show(self._decoder.flush())
        held = self._matcher.flush()
        self.pieces.append(held)
        return rest + held

    def _show(self, text: str) -> str:
        piece, self.stopped = self._matcher.push(text)
        self.pieces.append(piece)
        return piece
