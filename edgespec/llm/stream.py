"""The stream of a text that the engine generates, its events and its result."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgespec.errors import InputError
from edgespec.llm.result import PromptProgress, Result
from edgespec.runtime.drafters.alignment import Alignment, Prediction
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.sequences.model import NATIVE, Model
from edgespec.runtime.speculation.engine import Engine
from edgespec.runtime.speculation.generation import PROMPT, Generation, Request, Round
from edgespec.runtime.text.decoder import (
    AnswerEvent,
    CallEvent,
    ReasoningEvent,
    TextDecoder,
    TextEvent,
    join_events,
)
from edgespec.runtime.text.tools.faults import call_faults
from edgespec.system.environment import peak_rss_mb
from edgespec.system.processes import Unpicklable


@dataclass(frozen=True)
class LogprobsEvent:
    """Log-probabilities of tokens that are certain by now to be part of the text.

    Those of the last ones, behind which nothing more was shown, are in the result alone.

    Attributes:
        logprobs: those of the tokens behind the ones of the event before.
    """

    logprobs: tuple[TokenLogprobs, ...]


Event = PromptProgress | TextEvent | ReasoningEvent | CallEvent | LogprobsEvent | Round | Result
"""What happens to a text: the last event is its result.

Behind each pass of the target come what it has read of the prompt, what it has added to the
answer, and the pass itself, which those of a prompt name `PROMPT` as their source.
"""


@dataclass(frozen=True)
class TextFacts:
    """What is known of a text before it begins.

    Attributes:
        models: the target, and the draft model if there is one.
        draft_memory: see `Result`.
        json_class: see `Result.parsed`.
        unheld: schemas of functions by name, to which nothing holds the arguments of calls.
        left_out: see `Result.messages_left_out`.
    """

    models: Sequence[Model]
    draft_memory: str | None
    json_class: type | None
    unheld: Mapping[str, Mapping[str, Any]]
    left_out: int = 0


class Stream(Unpicklable):
    """A text as it is generated; iterate over its pieces once, then read its `result`.

    It begins at its first piece, and goes on while it is read, here or beside others. When nobody
    has the stream any more, the text ends.

    Args:
        engine: continues the text.
        request: what the text is to be.
        decoder: turns its tokens into events.
        facts: what is known of it.
        again: returns a stream of the same request with another seed, if this one has not begun;
            what was prepared for this one is not prepared anew.
    """

    _over = True  # of a stream whose `__init__` was interrupted

    def __init__(
        self,
        engine: Engine,
        request: Request,
        decoder: TextDecoder,
        facts: TextFacts,
        again: Callable[[int | None], Stream],
    ) -> None:
        self.again = again
        self._engine = engine
        self._request = request
        self._decoder = decoder
        self._facts = facts
        self._generation: Generation | None = None
        self._cancelled = False
        self._over = False  # whether nothing comes behind the events that are ready
        self._ready = deque[Event]()
        self._progress = PromptProgress(0, len(request.prompt))
        self._rounds: list[Round] = []
        self._logprobs: list[TokenLogprobs] = []
        self._logprobs_told = 0
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        # Times: of the beginning, of the first token, and of the last round.
        self._began = self._first = self._last = 0.0
        self._result: Result | None = None
        self._reading = threading.Lock()  # held by tasks, which may end a text that others read

    @property
    def prompt(self) -> Sequence[int]:
        """The tokens of the prompt."""
        return self._request.prompt

    @property
    def prompt_progress(self) -> PromptProgress:
        """How much of the prompt was read so far; any thread may look while another one reads."""
        return self._progress

    @property
    def rounds(self) -> Sequence[Round]:
        """The rounds so far, without the prompt's."""
        return self._rounds

    @property
    def tokens(self) -> int:
        """The number of new tokens so far."""
        return len(self._decoder.tokens)

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """Log-probabilities of the tokens that are certain by now to be part of the text."""
        return self._logprobs[: self._decoder.certain]

    @property
    def result(self) -> Result:
        """The finished text.

        Raises:
            InputError: while the stream has not been read to its end, or if it never was.
        """
        if self._result is None and self._over:
            raise InputError(
                "the stream was closed or failed before its end, and has no result: `cancel` ends "
                "a text with what it has"
            )
        if self._result is None:
            raise InputError("the stream has no result yet: read it to its end")
        return self._result

    def finish(self) -> Result:
        """Reads the stream to its end and returns the finished text."""
        for _ in self.events():
            pass
        return self.result

    def cancel(self) -> None:
        """Ends the text after the current round; any thread or signal handler may call it."""
        self._cancelled = True
        if self._generation is not None:
            self._generation.cancelled = True

    def close(self) -> None:
        """Ends the text at once and leaves its memory to others.

        A finished text stays as it is. Unlike `cancel`, only the thread that reads the stream may
        call it.
        """
        self.cancel()
        self._ready.clear()
        self._end()

    def events(self) -> Iterator[Event]:
        """Returns all that happens to the text, instead of its pieces alone."""
        while (event := self._next()) is not None:
            yield event

    def __iter__(self) -> Iterator[str]:
        """Returns the pieces of text; none is empty, and together they are `result.text`."""
        return (event.text for event in self.events() if isinstance(event, TextEvent))

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yields the same pieces for `async for`, made on threads so that the event loop goes on.

        A task that is cancelled, leaves the loop early or closes the iterator cancels the text: its
        sequence ends with the pass under way, and its slots are free.
        """
        import asyncio  # only here, since loading it takes 20 ms

        from edgespec.system.async_work import begin_work

        step = begin_work(self._next_text)
        try:
            while piece := await asyncio.shield(step):
                yield piece
                step = begin_work(self._next_text)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Ends the text as `cancel` does, and waits for that; any task may call it."""
        from edgespec.system.async_work import begin_work, wait_for_end

        self.cancel()
        await wait_for_end(begin_work(self._drain))

    def __del__(self) -> None:
        self._end()

    def _next_text(self) -> str:
        with self._reading:
            return next(iter(self), "")

    def _drain(self) -> None:
        with self._reading:
            for _ in self.events():
                pass

    def _next(self) -> Event | None:
        """Returns the next event, for which rounds are made; None behind the last one."""
        while not self._ready and not self._over:
            try:
                self._advance()
            except BaseException:
                self._end()
                raise
        return self._ready.popleft() if self._ready else None

    def _advance(self) -> None:
        """Makes a round, or ends the text."""
        generation = self._generation
        if generation is None:
            self._began = self._first = self._last = time.perf_counter()
            generation = self._generation = self._engine.add(self._request)
            generation.cancelled |= self._cancelled
        made = None if self._decoder.ended else self._engine.next_round(generation)
        if made is not None:
            self._add(made, generation)
            return
        self._end()
        self._add_answer(self._decoder.flush())
        self._result = self._finished(generation.reused)
        self._ready.append(self._result)

    def _end(self) -> None:
        """Leaves the memory of the text to others; no round is made any more."""
        if not self._over:
            if self._generation is not None:
                self._engine.remove(self._generation)
            self._over = True

    def _add(self, made: Round, generation: Generation) -> None:
        """Adds a round up to the end of the text, and what it adds to the answer."""
        self._last = time.perf_counter()
        if made.source == PROMPT:
            self._first = self._last
            total = len(self.prompt)
            read = min(generation.sequence.length, total)
            passed = self._first - self._began
            self._progress = PromptProgress(read, total, generation.reused, passed)
            self._ready.append(self._progress)
        events = list[AnswerEvent]()
        count = 0
        while count < len(made.tokens) and not self._decoder.ended:
            events += self._decoder.push(made.tokens[count])
            count += 1
        self._logprobs += made.logprobs[:count]
        self._add_answer(join_events(events))
        made = replace(made, tokens=made.tokens[:count], accepted=min(made.accepted, count))
        if made.source != PROMPT:
            self._rounds.append(made)
        self._ready.append(made)

    def _add_answer(self, events: Iterable[AnswerEvent]) -> None:
        """Adds what is new of the answer, then what is certain of its log-probabilities."""
        for event in events:
            if isinstance(event, TextEvent):
                self._texts.append(event.text)
            elif isinstance(event, ReasoningEvent):
                self._thoughts.append(event.text)
            self._ready.append(event)
        logprobs = tuple(self._logprobs[self._logprobs_told : self._decoder.certain])
        if logprobs:
            self._logprobs_told += len(logprobs)
            self._ready.append(LogprobsEvent(logprobs))

    def _finish_reason(self) -> str:
        limits = self._request.limits
        made = self._decoder.tokens
        if self._decoder.stopped or (made and made[-1] in limits.stop_ids):
            return "tool_calls" if self._decoder.calls else "stop"
        if self._decoder.looped:
            return "loop"
        if len(made) >= limits.max_new_tokens:
            return "length"
        if len(self.prompt) + len(made) >= limits.context_length:
            return "context"
        return "cancelled"

    def _finished(self, reused: int) -> Result:
        decoder = self._decoder
        models = self._facts.models
        rounds = self._rounds
        count = max(self.tokens - 1, 0)
        further = self._last - self._first
        return Result(
            text="".join(self._texts),
            tokens=decoder.tokens,
            prompt_tokens=len(self.prompt),
            new_tokens=self.tokens,
            finish_reason=self._finish_reason(),
            seed=self._request.sampler.seed,
            ttft_ms=round((self._first - self._began) * 1e3, 2),
            tpot_ms=round(further * 1e3 / count, 3) if count else 0.0,
            tokens_per_second=round(count / further, 1) if count else 0.0,
            rounds=len(rounds),
            drafted=sum(made.drafted for made in rounds),
            accepted=sum(made.accepted for made in rounds),
            mean_accepted_length=round(count / len(rounds), 3) if rounds else 0.0,
            begun=sum(made.begun for made in rounds),
            draft=self._request.draft,
            sources=dict(Counter(made.source for made in rounds).most_common()),
            draft_memory=self._facts.draft_memory,
            engine=models[0].device,
            exact=models[0].device == NATIVE,
            draft_engine=models[1].device if len(models) > 1 else None,
            peak_rss_mb=peak_rss_mb(),
            reused=reused,
            logprobs=self._kept_logprobs(),
            reasoning="".join(self._thoughts),
            reasoning_tokens=decoder.reasoning_tokens,
            tool_calls=decoder.calls,
            stop=decoder.stop,
            cut_call=decoder.cut_call,
            call_faults=call_faults(decoder.calls, self._facts.unheld),
            messages_left_out=self._facts.left_out,
            json_class=self._facts.json_class,
            **self._prediction_facts(),
        )

    def _kept_logprobs(self) -> tuple[TokenLogprobs, ...]:
        kept, beyond = self._decoder.kept
        found = self._logprobs[:kept]
        return (*found[:-1], *(replace(each, beyond=beyond) for each in found[-1:]))

    def _prediction_facts(self) -> dict[str, int]:
        """Returns what follows from prediction and text alone, however it was drafted."""
        if not (expected := self._request.prediction):
            return {}
        alignment = Alignment(Prediction(expected))
        for token in self._decoder.tokens:
            alignment.read(token)
        followed = alignment.followed
        return {
            "accepted_prediction_tokens": followed,
            "rejected_prediction_tokens": len(expected) - followed,
        }
