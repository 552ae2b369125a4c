"""The parts of a text, and what of its statistics a client may know."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate

from edgespec.llm.result import PromptProgress, Result
from edgespec.llm.stream import LogprobsEvent, Stream
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.speculation.generation import PROMPT, Round
from edgespec.runtime.text.decoder import CallEvent, ReasoningEvent, TextEvent

_CONVERSATIONS = 4096  # earlier prompts and texts that are known
_READ_STEP = 64  # tokens by which progress is told where others' prompts are reused


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
        progress: how much of the prompt was read, if that is all there is to tell.
    """

    text: str
    logprobs: tuple[TokenLogprobs, ...]
    rounds: tuple[Round, ...]
    choice: int = 0
    reasoning: str = ""
    calls: tuple[CallEvent, ...] = ()
    progress: PromptProgress | None = None

    @classmethod
    def of(cls, result: Result) -> Part:
        """Returns all of a text as one part, with a call that was cut short, as a stream has it."""
        cut = () if result.cut_call is None else (result.cut_call,)
        calls = tuple(
            CallEvent(index, call.text, call.id, call.name)
            for index, call in enumerate((*result.tool_calls, *cut))
        )
        return cls(result.text, result.logprobs, (), reasoning=result.reasoning, calls=calls)


class Conversations:
    """How much of a prompt its client may know to be cached, where nobody gave a key.

    What other clients have sent must not be found out token by token. So only whole earlier prompts
    count, with their texts or without: who sends them again has been in that conversation.
    """

    def __init__(self) -> None:
        self._known: dict[int, None] = {}  # hashes of tokens, the latest last
        self._noting = threading.Lock()

    def own(self, tokens: Sequence[int]) -> int:
        """Returns how many of the first tokens are such a prompt."""
        hashes = accumulate(tokens, lambda value, token: hash((value, token)), initial=0)
        return max((n for n, value in enumerate(hashes) if value in self._known), default=0)

    def note(self, *texts: Sequence[int]) -> None:
        """Makes prompts known."""
        with self._noting:
            for tokens in texts:
                value = reduce(lambda value, token: hash((value, token)), tokens, 0)
                self._known.pop(value, None)
                self._known[value] = None
            while len(self._known) > _CONVERSATIONS:
                del self._known[next(iter(self._known))]


@dataclass(frozen=True)
class Reader:
    """Reads a text to its end.

    Attributes:
        choice: which of a request's texts it is.
        stream: the text.
        put: takes its parts as they come.
        conversations: what its client may know of earlier prompts; None if the client gave a key,
            by which all that is shared is its own.
    """

    choice: int
    stream: Stream
    put: Callable[[Part], None]
    conversations: Conversations | None

    def read(self) -> Result:
        """Returns the finished text, whose `reused` counts what its client may know."""
        stream = self.stream
        known = self.conversations
        own = len(stream.prompt) if known is None else known.own(stream.prompt)
        with closing(stream):
            self._put_parts(own)
        result = replace(stream.result, reused=min(stream.result.reused, own))
        if known is not None:
            known.note(stream.prompt, [*stream.prompt, *result.tokens])
        return result

    def _put_parts(self, own: int) -> None:
        """Puts a part for each round that adds to the answer, with what came since the last."""
        texts = list[str]()
        thoughts = list[str]()
        calls = list[CallEvent]()
        logprobs = list[TokenLogprobs]()
        rounds = list[Round]()
        for event in self.stream.events():
            if isinstance(event, PromptProgress):
                self._tell(event, own)
            elif isinstance(event, TextEvent):
                texts.append(event.text)
            elif isinstance(event, ReasoningEvent):
                thoughts.append(event.text)
            elif isinstance(event, CallEvent):
                calls.append(event)
            elif isinstance(event, LogprobsEvent):
                logprobs += event.logprobs
            else:
                if isinstance(event, Round) and event.source != PROMPT:
                    rounds.append(event)
                if texts or thoughts or calls:
                    text = "".join(texts)
                    reasoning = "".join(thoughts)
                    told = tuple(logprobs), tuple(rounds)
                    self.put(Part(text, *told, self.choice, reasoning, tuple(calls)))
                    for each in (texts, thoughts, calls, logprobs, rounds):
                        each.clear()

    def _tell(self, progress: PromptProgress, own: int) -> None:
        if (told := _as_known(progress, own)) is not None:
            self.put(Part("", (), (), self.choice, progress=told))


def _as_known(progress: PromptProgress, own: int) -> PromptProgress | None:
    """Returns how much of a prompt was read as a client may know it; None if that is nothing new.

    What was reused of others' prompts is not told, nor where it ends: only whole steps count, and
    the last one, behind which the text begins, is left out.
    """
    if progress.reused <= own:
        return progress
    if progress.read == progress.total:
        return None
    read = own + (progress.read - progress.reused) // _READ_STEP * _READ_STEP
    return replace(progress, read=read, reused=own)
