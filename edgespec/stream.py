"""One text from prompt to result: tokens become pieces of text as rounds come in."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any

from edgespec.bundle import TARGET
from edgespec.environment import peak_rss_mb
from edgespec.errors import InputError
from edgespec.runtime.drafters import Drafter, TreeBudget
from edgespec.runtime.generate import Limits, Round, generate
from edgespec.runtime.logprobs import TokenLogprobs
from edgespec.runtime.model import Model, Runner, common_beginning
from edgespec.runtime.pipelines import Serial
from edgespec.runtime.sampling import Sampler
from edgespec.runtime.slots import Slot, Slots
from edgespec.runtime.text import StopMatcher, StreamDecoder, Tokenizer
from edgespec.runtime.turns import Turns

_WARM_UP = 10  # rounds before the planner is held to its word


@dataclass(frozen=True)
class GenerationResult:
    """A finished text and how it came about.

    Attributes:
        text: the new text, without the prompt.
        tokens: the new tokens' ids, the one that ended the text included.
        prompt_tokens: tokens of the prompt.
        new_tokens: how many `tokens` there are.
        finish_reason: stop, length, context or cancelled.
        seed: the seed in use; with it the same text comes again.
        ttft_ms: time to the first token.
        tpot_ms: time per further token; 0 if there was none.
        tokens_per_second: of the further tokens; 0 if there was none.
        rounds: passes of the target after the prompt's.
        drafted: tokens that were proposed.
        accepted: proposed tokens that became text.
        mean_accepted_length: tokens per round; 0 if there was no round.
        begun: rounds whose draft had been begun in the round before.
        draft: the draft source.
        sources: rounds by who drafted their trees; where drafts are planned they differ.
        draft_memory: what recycling started from: cold (nothing) or hot (earlier texts, or a
            file); None if it takes no part.
        predicted_tokens_per_second: of the rounds after the tenth, what the planner expected;
            None if nothing was planned.
        measured_tokens_per_second: of the same rounds, what came.
        engine: where the target ran.
        peak_rss_mb: the process's largest resident memory so far, MiB, file-backed pages included.
        engine_ms: of the time after the first token, how much passed inside the engines.
        reused: tokens of the prompt that an earlier text had left in the caches.
        logprobs: of each token, where they were asked for.
        simulated: the machine that all times are simulated for; None: they are this machine's.
    """

    text: str
    tokens: list[int]
    prompt_tokens: int
    new_tokens: int
    finish_reason: str
    seed: int
    ttft_ms: float
    tpot_ms: float
    tokens_per_second: float
    rounds: int
    drafted: int
    accepted: int
    mean_accepted_length: float
    begun: int
    draft: str
    sources: dict[str, int]
    draft_memory: str | None
    predicted_tokens_per_second: float | None
    measured_tokens_per_second: float | None
    engine: str
    peak_rss_mb: float
    engine_ms: float
    reused: int
    logprobs: tuple[TokenLogprobs, ...]
    simulated: str | None


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
        self._clock = _Clock()
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

        Whoever leaves the loop early cancels the text.
        """
        try:
            while piece := await asyncio.to_thread(next, self._pieces, ""):
                yield piece
        finally:
            self.cancel()

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
        drafter = job.drafter(runners)
        reused = common_beginning(target.tokens, job.prompt[:-1])
        rounds = generate(
            job.pipeline(target, drafter), job.sampler, job.prompt,
            limits=job.limits, budget=job.budget, logprobs=job.logprobs,
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
            prompt_tokens=len(job.prompt),
            finish_reason=self._finish_reason(text),
            seed=job.sampler.seed,
            draft=drafter.name,
            draft_memory=job.draft_memory,
            engine=target.model.device,
            peak_rss_mb=peak_rss_mb(),
            reused=reused,
            logprobs=tuple(self.logprobs),
            simulated=job.simulated,
            **_facts(text, clock),
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


class _Clock:
    """When tokens came, and how much of the time the engines took.

    Attributes:
        begin: of the text, by `time.perf_counter`.
        first: when the first token came.
        end: when the last one came.
        rounds: so far, the prompt's left out.
        engine_seconds: that passed inside the engines in these rounds.
    """

    def __init__(self) -> None:
        self.begin = self.first = self.end = 0.0
        self.rounds: list[Round] = []
        self.engine_seconds = 0.0

    def start(self) -> None:
        """The text begins."""
        self.begin = self.first = self.end = time.perf_counter()

    def round(self, rounds: Iterator[Round], models: Iterable[Model]) -> Round | None:
        """The next round, by these models; None: the text is over."""
        before = sum(model.seconds for model in models)
        step = next(rounds, None)
        if step is None:
            return None
        self.end = time.perf_counter()
        if self.first == self.begin:
            self.first = self.end
        else:
            self.rounds.append(step)
            self.engine_seconds += sum(model.seconds for model in models) - before
        return step


def _facts(text: _Text, clock: _Clock) -> dict[str, Any]:
    """What a result says of its text and its rounds."""
    rounds, seconds = clock.rounds, clock.end - clock.first
    further = max(len(text.tokens) - 1, 0)
    predicted, measured = _rates(rounds[_WARM_UP:])
    return {
        "text": "".join(text.pieces),
        "tokens": text.tokens,
        "new_tokens": len(text.tokens),
        "ttft_ms": round((clock.first - clock.begin) * 1e3, 2),
        "tpot_ms": round(seconds * 1e3 / further, 3) if further else 0.0,
        "tokens_per_second": round(further / seconds, 1) if further else 0.0,
        "rounds": len(rounds),
        "drafted": sum(step.drafted for step in rounds),
        "accepted": sum(step.accepted for step in rounds),
        "mean_accepted_length": _mean([len(step.tokens) for step in rounds]),
        "begun": sum(step.begun for step in rounds),
        "sources": dict(Counter(step.source for step in rounds).most_common()),
        "predicted_tokens_per_second": predicted,
        "measured_tokens_per_second": measured,
        "engine_ms": round(clock.engine_seconds * 1e3, 2),
    }


def _rates(rounds: Sequence[Round]) -> tuple[float | None, float | None]:
    """Tokens per second that were forecast, and those that came in these rounds."""
    planned = [(step, step.forecast) for step in rounds if step.forecast is not None]
    if not planned:
        return None, None
    expected = sum(f.tokens for _, f in planned) / sum(f.seconds for _, f in planned)
    came = sum(len(step.tokens) for step, _ in planned) / sum(step.seconds for step, _ in planned)
    return round(expected, 1), round(came, 1)


def _mean(values: Sequence[int]) -> float:
    return round(sum(values) / len(values), 3) if values else 0.0
