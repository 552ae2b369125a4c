"""A text that the engine generates, as a stream of pieces, and its result."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

from edgespec.errors import InputError, reason
from edgespec.llm.chat import Conversation
from edgespec.llm.result import GenerationResult, PromptProgress
from edgespec.runtime.drafters.alignment import Alignment, Prediction
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.sequences.model import NATIVE, Model
from edgespec.runtime.speculation.engine import Engine
from edgespec.runtime.speculation.generation import PROMPT, Generation, Request, Round
from edgespec.runtime.text.loops import LoopMatcher
from edgespec.runtime.text.schema.validation import misfit
from edgespec.runtime.text.streaming import Piece, StreamDecoder, TextEnd, ToolCall
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.environment import peak_rss_mb
from edgespec.system.processes import Unpicklable

_log = logging.getLogger(__name__)


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
        self._pieces = self._text.pieces()
        self._texts = (piece.text for piece in self._pieces if piece.text)
        self._reading = threading.Lock()  # held by tasks, which may end a text that others read

    @property
    def prompt(self) -> Sequence[int]:
        """The tokens of the prompt."""
        return self._text.request.prompt

    @property
    def prompt_progress(self) -> PromptProgress:
        """How much of the prompt was read so far; any thread may look while another one reads."""
        return self._text.progress

    def watch_prompt(self, told: Callable[[PromptProgress], None]) -> None:
        """Has each pass that reads of the prompt told, on the thread that reads the stream.

        Call it before the text begins.
        """
        self._text.told = told

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
        for _ in self._pieces:
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
        self._pieces.close()

    def pieces(self) -> Iterator[Piece]:
        """Returns the pieces with all that an answer consists of, instead of its text alone."""
        return self._pieces

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
            for _ in self._pieces:
                pass


@dataclass(eq=False)
class Generated:
    """A text as it is generated, for a `GenerationStream`.

    It does not refer to the generator of its pieces, so that this is closed when its reader goes.

    Attributes:
        engine: continues the text.
        request: what is asked for.
        text: turns its tokens into pieces.
        models: the target, and the draft model if there is one.
        draft_memory: see `GenerationResult`.
        rounds: the rounds so far, without the prompt's.
        result: the finished text; None before.
        told: called with `progress` behind each pass that reads of the prompt; None: nobody is.
    """

    engine: Engine
    request: Request
    text: AnswerText
    models: Sequence[Model]
    draft_memory: str | None
    rounds: list[Round] = field(default_factory=list)
    result: GenerationResult | None = None
    told: Callable[[PromptProgress], None] | None = None
    _progress: PromptProgress | None = None
    _logprobs: list[TokenLogprobs] = field(default_factory=list)
    _generation: Generation | None = None
    _cancelled: bool = False

    @property
    def count(self) -> int:
        """The number of new tokens so far."""
        return len(self.text.tokens)

    @property
    def progress(self) -> PromptProgress:
        """How much of the prompt was read so far."""
        return self._progress or PromptProgress(0, len(self.request.prompt))

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """See `GenerationStream`."""
        return self._logprobs[: self.text.certain]

    def _all_logprobs(self) -> tuple[TokenLogprobs, ...]:
        kept, beyond = self.text.kept
        told = self._logprobs[:kept]
        return (*told[:-1], *(replace(each, beyond=beyond) for each in told[-1:]))

    def cancel(self) -> None:
        """See `GenerationStream`."""
        self._cancelled = True
        if self._generation is not None:
            self._generation.cancelled = True

    def pieces(self) -> Generator[Piece]:
        """Makes the text."""
        begin = first = end = time.perf_counter()
        text = self.text
        generation = self._generation = self.engine.add(self.request)
        generation.cancelled |= self._cancelled
        try:
            while not text.ended and (made := self.engine.next_round(generation)) is not None:
                end = time.perf_counter()
                if made.source == PROMPT:
                    first = end
                    self._tell_progress(generation, first - begin)
                if piece := self._push(made):
                    yield piece
        finally:
            self.engine.remove(generation)
        if piece := text.flush():
            yield piece
        self.result = self._facts(first - begin, end - first, generation.reused)

    def _tell_progress(self, generation: Generation, seconds: float) -> None:
        total = len(self.request.prompt)
        read = min(generation.sequence.length, total)
        self._progress = PromptProgress(read, total, generation.reused, seconds)
        if self.told is not None:
            self.told(self._progress)

    def _push(self, made: Round) -> Piece:
        """Takes the tokens of a round, up to the end of the text; returns what is now final."""
        before = self.count
        piece = self.text.push(made.tokens)
        if made.source != PROMPT:  # tokens behind the end are no part of the round
            count = self.count - before
            accepted = min(made.accepted, count)
            self.rounds.append(replace(made, tokens=made.tokens[:count], accepted=accepted))
        self._logprobs += made.logprobs[: self.count - before]
        return piece

    def _finish_reason(self) -> str:
        limits = self.request.limits
        made = self.text.tokens
        if self.text.stopped or (made and made[-1] in limits.stop_ids):
            return "tool_calls" if self.text.tool_calls else "stop"
        if self.text.looped:
            return "loop"
        if len(made) >= limits.max_new_tokens:
            return "length"
        if len(self.request.prompt) + len(made) >= limits.context_length:
            return "context"
        return "cancelled"

    def _facts(self, first: float, further: float, reused: int) -> GenerationResult:
        text = self.text
        rounds = self.rounds
        count = max(self.count - 1, 0)
        return GenerationResult(
            text="".join(piece.text for piece in text.pieces),
            tokens=text.tokens,
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
            draft_memory=self.draft_memory,
            engine=self.models[0].device,
            exact=self.models[0].device == NATIVE,
            draft_engine=self.models[1].device if len(self.models) > 1 else None,
            peak_rss_mb=peak_rss_mb(),
            reused=reused,
            logprobs=self._all_logprobs(),
            reasoning="".join(piece.reasoning for piece in text.pieces),
            reasoning_tokens=text.reasoning_tokens,
            tool_calls=text.tool_calls,
            cut_call=text.cut_call,
            call_faults=text.call_faults,
            json_class=text.json_class,
            **self._prediction_facts(),
        )

    def _prediction_facts(self) -> dict[str, int]:
        """Returns what follows from prediction and text alone, however it was drafted."""
        if not (expected := self.request.prediction):
            return {}
        alignment = Alignment(Prediction(expected))
        for token in self.text.tokens:
            alignment.read(token)
        followed = alignment.followed
        return {
            "accepted_prediction_tokens": followed,
            "rejected_prediction_tokens": len(expected) - followed,
        }


class AnswerText:
    """Turns tokens into text: whole characters only, cut where it ends, without an end token.

    What ends a text besides its tokens is looked for in the answer, not in reasoning or calls.

    Args:
        asked: the prompt, and how the text is taken apart.
        tokenizer: tokenizer of the target.
        end: what ends the text besides its tokens.
        stop_ids: tokens that end it.
        json_class: see `GenerationResult.parsed`.
        loops: ends it when it repeats itself; None: nothing does.

    Attributes:
        tokens: the tokens so far, with the one that ended it.
        pieces: what they consist of.
        stopped: whether `end` has ended the text.
        looped: whether `loops` has.
    """

    def __init__(
        self,
        asked: Conversation,
        tokenizer: Tokenizer,
        end: TextEnd,
        stop_ids: frozenset[int],
        json_class: type | None = None,
        loops: LoopMatcher | None = None,
    ) -> None:
        self.json_class = json_class
        shown = {**end.marks, **asked.shown}
        self._decoder = StreamDecoder(tokenizer, asked.prompt, shown)
        self._end = end
        self._reader = asked.reader
        self._unheld = asked.unheld
        # An end token may be a mark that the reader or a stop string needs.
        self._left_out = stop_ids - shown.keys()
        self.tokens: list[int] = []
        self._ends = [0]  # characters of the text up to each token, its end aside
        self._shown = 0  # characters before that
        self._held = 0  # characters of the answer that may be, or are, behind its end
        self.pieces: list[Piece] = []
        self._loops = loops
        self.stopped = self.looped = False

    @property
    def ended(self) -> bool:
        """Whether the text has ended before its limits."""
        return self.stopped or self.looped

    @property
    def certain(self) -> int:
        """The number of tokens whose text was shown."""
        # Those behind it that have no text may have begun a character.
        last = bisect_left(self._ends, self._shown)
        return last - (self._ends[last] > self._shown)

    @property
    def kept(self) -> tuple[int, int]:
        """How many tokens are part of the whole text, and how far the last reaches beyond it."""
        beyond = self._ends[-1] - self._shown
        if not beyond or not self._shown:
            return (0 if beyond else len(self.tokens)), 0
        last = bisect_left(self._ends, self._shown)
        return last, self._ends[last] - self._shown

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The complete tool calls so far."""
        return () if self._reader is None else tuple(self._reader.calls)

    @property
    def cut_call(self) -> ToolCall | None:
        """The call that is not complete yet."""
        return None if self._reader is None else self._reader.cut

    @property
    def call_faults(self) -> tuple[str, ...]:
        """What does not fit in calls of tools that are not held to their whole schemas."""
        found = []
        for call in self.tool_calls if self._unheld else ():
            if fault := misfit(call.arguments, self._unheld.get(call.name, {})):
                found.append(f"{call.name}: {reason(fault)}")
                _log.warning("a call does not fit the schema of its tool %s", found[-1])
        return tuple(found)

    @property
    def reasoning_tokens(self) -> int:
        """The number of tokens of reasoning so far."""
        return 0 if self._reader is None else self._reader.reasoning_tokens

    def push(self, tokens: Sequence[int]) -> Piece:
        """Adds tokens and returns what is now final; drops tokens after the end."""
        piece = Piece()
        for token in tokens:
            self.tokens.append(token)
            text = "" if token in self._left_out else self._decoder.push(token)
            self._ends.append(self._ends[-1] + len(self._end.without_marks(text)))
            if token not in self._left_out:
                piece += self._taken_apart(text, 1)
            self.looped = self._loops is not None and self._loops.push(token)
            if self.ended:
                break
        self.pieces.append(piece)
        return piece

    def flush(self) -> Piece:
        """Returns the rest of the text after the last token."""
        text = self._decoder.flush()
        if self.looped:  # perhaps inside a character, of which the text has others
            text = text.rstrip("\ufffd")
        self._ends[-1] += len(text)
        piece = self._taken_apart(text, 0)
        if self._reader is not None and not self.stopped:
            piece += self._ended(self._reader.finish())
            self._shown = self._ends[-1] - self._held
        held = self._end.flush()
        self._shown += len(held)
        piece += Piece(held)
        self.pieces.append(piece)
        return piece

    def _taken_apart(self, text: str, tokens: int) -> Piece:
        """Returns what a text adds to the answer, up to its end."""
        piece = Piece(text) if self._reader is None else self._reader.push(text, tokens)
        piece = self._ended(piece)
        unread = "" if self._reader is None else self._end.without_marks(self._reader.unread)
        self._shown = self._ends[-1] - len(unread) - self._held
        return piece

    def _ended(self, piece: Piece) -> Piece:
        """Returns a piece up to where the answer ends."""
        plain = self._end.without_marks
        text, self.stopped = self._end.push(piece.text)
        self._held += len(plain(piece.text)) - len(text)
        calls = tuple(replace(each, arguments=plain(each.arguments)) for each in piece.calls)
        return Piece(text, plain(piece.reasoning), calls)
