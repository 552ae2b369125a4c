"""A text that the engine generates, as a stream of pieces, and its result."""

from __future__ import annotations

import logging
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
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from edgespec.errors import InputError, reason
from edgespec.llm.result import GenerationResult, PromptProgress
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
    joined,
)
from edgespec.runtime.text.schema.validation import misfit
from edgespec.runtime.text.tools.calls import ToolCall
from edgespec.system.environment import peak_rss_mb
from edgespec.system.processes import Unpicklable

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LogprobsEvent:
    """Log-probabilities of tokens that are certain by now to be part of the text.

    Those of the last ones, behind which nothing more was shown, are in the result alone.

    Attributes:
        logprobs: those of the tokens behind the ones of the event before.
    """

    logprobs: tuple[TokenLogprobs, ...]


Event = (
    PromptProgress
    | TextEvent
    | ReasoningEvent
    | CallEvent
    | LogprobsEvent
    | Round
    | GenerationResult
)
"""What happens to a text: the last event is its result.

Behind each pass of the target come what it has read of the prompt, what it has added to the
answer, and the pass itself, which those of a prompt name `PROMPT` as their source.
"""


class GenerationStream(Unpicklable):
    """Pieces of a text as they are generated; iterate over it once, then read `result`.

    It begins at its first piece, and goes on while it is read, here or beside others. When nobody
    has the stream any more, the text ends.

    Args:
        text: the text, which has not begun.
        again: returns a stream of the same request with another seed, if this one has not begun;
            what was prepared for this one is not prepared anew.
    """

    def __init__(self, text: Generated, again: Callable[[int | None], GenerationStream]) -> None:
        self._text = text
        self.again = again
        self._events = self._text.events()
        self._texts = (event.text for event in self._events if isinstance(event, TextEvent))
        self._reading = threading.Lock()  # held by tasks, which may end a text that others read

    @property
    def prompt(self) -> Sequence[int]:
        """The tokens of the prompt."""
        return self._text.request.prompt

    @property
    def prompt_progress(self) -> PromptProgress:
        """How much of the prompt was read so far; any thread may look while another one reads."""
        return self._text.progress

    def share_by(self, salt: str) -> None:
        """Has the text share what was computed with texts of the same salt alone.

        Call it before the text begins. Of the salt, which may be long and stays as long as what was
        computed, only a hash is kept.
        """
        short = sha256(salt.encode(errors="surrogatepass")).hexdigest() if salt else ""
        self._text.request = replace(self._text.request, salt=short)

    @property
    def rounds(self) -> Sequence[Round]:
        """The rounds so far, without the prompt's."""
        return self._text.rounds

    @property
    def tokens(self) -> int:
        """The number of new tokens so far."""
        return self._text.count

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """Log-probabilities of the tokens that are certain by now to be part of the text."""
        return self._text.logprobs

    @property
    def result(self) -> GenerationResult:
        """The finished text.

        Raises:
            InputError: while the stream has not been read to its end.
        """
        if self._text.result is None:
            raise InputError("the stream has no result yet: read it to its end")
        return self._text.result

    def finish(self) -> GenerationResult:
        """Reads the stream to its end and returns the finished text."""
        for _ in self._events:
            pass
        return self.result

    def cancel(self) -> None:
        """Ends the text after the current round; any thread or signal handler may call it."""
        self._text.cancel()

    def close(self) -> None:
        """Ends the text at once and leaves its memory to others.

        A finished text stays as it is. Unlike `cancel`, only the thread that reads the stream may
        call it.
        """
        self.cancel()
        self._events.close()

    def events(self) -> Iterator[Event]:
        """Returns all that happens to the text, instead of its pieces alone."""
        return self._events

    def __iter__(self) -> Iterator[str]:
        """Returns the pieces of text; none is empty, and together they are `result.text`."""
        return self._texts

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yields the same pieces for `async for`, made on threads so that the event loop goes on.

        A task that is cancelled, leaves the loop early or closes the iterator cancels the text: its
        sequence ends with the pass under way, and its slots are free.
        """
        import asyncio  # only here, since loading it takes 20 ms

        from edgespec.llm.asynchronous import begun

        step = begun(self._next_text)
        try:
            while piece := await asyncio.shield(step):
                yield piece
                step = begun(self._next_text)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Ends the text as `cancel` does, and waits for that; any task may call it."""
        from edgespec.llm.asynchronous import begun, ended

        self.cancel()
        await ended(begun(self._drain))

    def _next_text(self) -> str:
        with self._reading:
            return next(self._texts, "")

    def _drain(self) -> None:
        with self._reading:
            for _ in self._events:
                pass


@dataclass(frozen=True)
class TextFacts:
    """What is known of a text before it begins.

    Attributes:
        models: the target, and the draft model if there is one.
        draft_memory: see `GenerationResult`.
        json_class: see `GenerationResult.parsed`.
        unheld: schemas of functions by name, to which nothing holds the arguments of calls.
    """

    models: Sequence[Model]
    draft_memory: str | None
    json_class: type | None
    unheld: Mapping[str, Mapping[str, Any]]


@dataclass(eq=False)
class Generated:
    """A text as it is generated, for a `GenerationStream`.

    It does not refer to the generator of its pieces, so that this is closed when its reader goes.

    Attributes:
        engine: continues the text.
        request: what is asked for.
        decoder: turns its tokens into events.
        facts: what is known of it.
        rounds: the rounds so far, without the prompt's.
        result: the finished text; None before.
    """

    engine: Engine
    request: Request
    decoder: TextDecoder
    facts: TextFacts
    rounds: list[Round] = field(default_factory=list)
    result: GenerationResult | None = None
    _progress: PromptProgress | None = None
    _logprobs: list[TokenLogprobs] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)
    _thoughts: list[str] = field(default_factory=list)
    _logprobs_told: int = 0  # tokens whose log-probabilities were in events
    _generation: Generation | None = None
    _cancelled: bool = False

    @property
    def count(self) -> int:
        """The number of new tokens so far."""
        return len(self.decoder.tokens)

    @property
    def progress(self) -> PromptProgress:
        """How much of the prompt was read so far."""
        return self._progress or PromptProgress(0, len(self.request.prompt))

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """See `GenerationStream`."""
        return self._logprobs[: self.decoder.certain]

    def _all_logprobs(self) -> tuple[TokenLogprobs, ...]:
        kept, beyond = self.decoder.kept
        told = self._logprobs[:kept]
        return (*told[:-1], *(replace(each, beyond=beyond) for each in told[-1:]))

    def cancel(self) -> None:
        """See `GenerationStream`."""
        self._cancelled = True
        if self._generation is not None:
            self._generation.cancelled = True

    def events(self) -> Generator[Event]:
        """Makes the text."""
        begin = first = end = time.perf_counter()
        decoder = self.decoder
        generation = self._generation = self.engine.add(self.request)
        generation.cancelled |= self._cancelled
        try:
            while not decoder.ended and (made := self.engine.next_round(generation)) is not None:
                end = time.perf_counter()
                if made.source == PROMPT:
                    first = end
                    yield self._note_progress(generation, first - begin)
                made, events = self._push(made)
                yield from self._told(events)
                yield made
        finally:
            self.engine.remove(generation)
        yield from self._told(decoder.flush())
        self.result = self._result(first - begin, end - first, generation.reused)
        yield self.result

    def _note_progress(self, generation: Generation, seconds: float) -> PromptProgress:
        total = len(self.request.prompt)
        read = min(generation.sequence.length, total)
        self._progress = PromptProgress(read, total, generation.reused, seconds)
        return self._progress

    def _push(self, made: Round) -> tuple[Round, list[AnswerEvent]]:
        """Decodes the tokens of a round; returns it up to the end of the text, and what it adds."""
        events = list[AnswerEvent]()
        count = 0
        while count < len(made.tokens) and not self.decoder.ended:
            events += self.decoder.push(made.tokens[count])
            count += 1
        self._logprobs += made.logprobs[:count]
        accepted = min(made.accepted, count)
        made = replace(made, tokens=made.tokens[:count], accepted=accepted)
        if made.source != PROMPT:
            self.rounds.append(made)
        return made, joined(events)

    def _told(self, events: Iterable[AnswerEvent]) -> Generator[AnswerEvent | LogprobsEvent]:
        """Notes what events add to the text, then what is certain of its log-probabilities."""
        for event in events:
            if isinstance(event, TextEvent):
                self._texts.append(event.text)
            elif isinstance(event, ReasoningEvent):
                self._thoughts.append(event.text)
            yield event
        logprobs = tuple(self.logprobs[self._logprobs_told :])
        if logprobs:
            self._logprobs_told += len(logprobs)
            yield LogprobsEvent(logprobs)

    def _finish_reason(self) -> str:
        limits = self.request.limits
        made = self.decoder.tokens
        if self.decoder.stopped or (made and made[-1] in limits.stop_ids):
            return "tool_calls" if self.decoder.calls else "stop"
        if self.decoder.looped:
            return "loop"
        if len(made) >= limits.max_new_tokens:
            return "length"
        if len(self.request.prompt) + len(made) >= limits.context_length:
            return "context"
        return "cancelled"

    def _result(self, first: float, further: float, reused: int) -> GenerationResult:
        decoder = self.decoder
        models = self.facts.models
        rounds = self.rounds
        count = max(self.count - 1, 0)
        return GenerationResult(
            text="".join(self._texts),
            tokens=decoder.tokens,
            prompt_tokens=len(self.request.prompt),
            new_tokens=self.count,
            finish_reason=self._finish_reason(),
            seed=self.request.sampler.seed,
            ttft_ms=round(first * 1e3, 2),
            tpot_ms=round(further * 1e3 / count, 3) if count else 0.0,
            tokens_per_second=round(count / further, 1) if count else 0.0,
            rounds=len(rounds),
            drafted=sum(made.drafted for made in rounds),
            accepted=sum(made.accepted for made in rounds),
            mean_accepted_length=round(count / len(rounds), 3) if rounds else 0.0,
            begun=sum(made.begun for made in rounds),
            draft=self.request.draft,
            sources=dict(Counter(made.source for made in rounds).most_common()),
            draft_memory=self.facts.draft_memory,
            engine=models[0].device,
            exact=models[0].device == NATIVE,
            draft_engine=models[1].device if len(models) > 1 else None,
            peak_rss_mb=peak_rss_mb(),
            reused=reused,
            logprobs=self._all_logprobs(),
            reasoning="".join(self._thoughts),
            reasoning_tokens=decoder.reasoning_tokens,
            tool_calls=decoder.calls,
            cut_call=decoder.cut_call,
            call_faults=call_faults(decoder.calls, self.facts.unheld),
            json_class=self.facts.json_class,
            **self._prediction_facts(),
        )

    def _prediction_facts(self) -> dict[str, int]:
        """Returns what follows from prediction and text alone, however it was drafted."""
        if not (expected := self.request.prediction):
            return {}
        alignment = Alignment(Prediction(expected))
        for token in self.decoder.tokens:
            alignment.read(token)
        followed = alignment.followed
        return {
            "accepted_prediction_tokens": followed,
            "rejected_prediction_tokens": len(expected) - followed,
        }


def call_faults(
    calls: Iterable[ToolCall], unheld: Mapping[str, Mapping[str, Any]]
) -> tuple[str, ...]:
    """Returns what does not fit in calls of tools that are not held to their whole schemas.

    Args:
        calls: the calls of an answer.
        unheld: the schemas of such tools, by their names.
    """
    found = []
    for call in calls if unheld else ():
        if fault := misfit(call.arguments, unheld.get(call.name, {})):
            found.append(f"{call.name}: {reason(fault)}")
            _log.warning("a call does not fit the schema of its tool %s", found[-1])
    return tuple(found)
