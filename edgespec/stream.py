"""One text from prompt to result: tokens become pieces of text as rounds come in."""

from __future__ import annotations

import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.bundle import DRAFT, TARGET
from edgespec.environment import peak_rss_mb
from edgespec.errors import InputError
from edgespec.result import Clock, GenerationResult
from edgespec.runtime.drafters import Drafter, GuidedDrafter, TreeBudget
from edgespec.runtime.generate import Limits, Round, generate
from edgespec.runtime.logprobs import TokenLogprobs
from edgespec.runtime.pipelines import Serial
from edgespec.runtime.runner import Runner
from edgespec.runtime.sampling import Sampler
from edgespec.runtime.slots import Slot, Slots
from edgespec.runtime.text import StopMatcher, StreamDecoder, Tokenizer
from edgespec.runtime.turns import Turns

if TYPE_CHECKING:
    from edgespec.runtime.guide import Guide


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
        guide: of a grammar, if the text follows one.
        draft_memory: see `GenerationResult`.
        slots: where its caches come from.
        slot: of them, the one of the text's session; None: it has none.
        turns: other texts of the same models wait while a round of this one is made.
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
    guide: Guide | None
    draft_memory: str | None
    slots: Slots
    slot: Slot | None
    turns: Turns
    simulated: str | None


class TextStream:
    """Pieces of a text as they are made; iterate over it once, then read `result`.

    `cancel` may be called from another thread or a signal handler: the text then ends after the
    round that is under way.

    Attributes:
        logprobs: of the tokens so far, where they were asked for.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.logprobs: list[TokenLogprobs] = []
        self._cancelled = threading.Event()
        self._result: GenerationResult | None = None
        self._clock = Clock()
        self._pieces = self._run()

    @property
    def rounds(self) -> Sequence[Round]:
        """The rounds so far, the prompt's left out."""
        return self._clock.rounds

    @property
    def result(self) -> GenerationResult:
        """The finished text.

        Raises:
            InputError: while the stream has not been read to its end.
        """
        if self._result is None:
            raise InputError("the stream has no result yet: read it to its end")
        return self._result

    def finish(self) -> GenerationResult:
        """Read it to its end."""
        for _ in self._pieces:
            pass
        return self.result

    def cancel(self) -> None:
        """End the text after the present round."""
        self._cancelled.set()

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
            return asyncio.ensure_future(asyncio.to_thread(next, self._pieces, ""))

        step = next_step()
        try:
            while piece := await asyncio.shield(step):
                yield piece
                step = next_step()
        finally:
            self.cancel()
            await asyncio.wait([step])  # a round may be under way
            for _ in self._pieces:
                pass

    def _run(self) -> Generator[str]:
        job, limits = self._job, self._job.limits
        text = _Text(job.tokenizer, job.prompt, job.stop)
        self._clock.start()
        with job.turns:
            length = min(len(job.prompt) + limits.max_new_tokens, limits.context_length)
            slot = job.slots.enter(job.slot, job.prompt, length)
        sound = False
        try:
            yield from self._pieces_of(text, slot.runners)
            sound = True
        except GeneratorExit:  # closed between two rounds
            sound = True
            raise
        finally:
            slot.leave(sound)

    def _pieces_of(self, text: _Text, runners: Mapping[str, Runner]) -> Generator[str]:
        job, clock, target = self._job, self._clock, runners[TARGET]
        models = [runner.model for runner in runners.values()]
        reused = target.known(job.prompt)
        with job.turns:
            drafter = job.drafter(runners)
            if job.guide is not None:
                drafter = GuidedDrafter(drafter, job.guide)
            rounds = generate(
                job.pipeline(target, drafter), job.sampler, job.prompt,
                limits=job.limits, budget=job.budget, logprobs=job.logprobs,
                guide=job.guide,
            )  # fmt: skip
        while not (text.stopped or self._cancelled.is_set()):
            with job.turns:  # for which it may have waited long
                step = None if self._cancelled.is_set() else clock.round(rounds, models)
            if step is None:
                break
            piece = text.push(step.tokens)
            self.logprobs += step.logprobs[: len(text.tokens) - len(self.logprobs)]
            if piece:
                yield piece
        if piece := text.flush():
            yield piece
        self._result = GenerationResult(
            text="".join(text.pieces),
            tokens=text.tokens,
            prompt_tokens=len(job.prompt),
            finish_reason=self._finish_reason(text),
            seed=job.sampler.seed,
            draft=drafter.name,
            draft_memory=job.draft_memory,
            engine=target.model.device,
            draft_engine=runners[DRAFT].model.device if DRAFT in runners else None,
            peak_rss_mb=peak_rss_mb(),
            reused=reused,
            logprobs=tuple(self.logprobs),
            simulated=job.simulated,
            **clock.facts(len(text.tokens)),
        )

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
