"""The decoder of texts: tokens become events, of which its answer consists."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgespec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edgespec.runtime.text.answers import AnswerParser
    from edgespec.runtime.text.endings import Ending
    from edgespec.runtime.text.loops import LoopMatcher
    from edgespec.runtime.text.tools.calls import ToolCall

_REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class TextEvent:
    """More text for the user.

    Attributes:
        text: what comes behind the text so far.
    """

    text: str


@dataclass(frozen=True)
class ReasoningEvent:
    """More reasoning, which is no part of the text.

    Attributes:
        text: what comes behind the reasoning so far.
    """

    text: str


@dataclass(frozen=True)
class CallEvent:
    """More of a tool call.

    Attributes:
        index: number of the call in the answer, from 0.
        arguments: what comes behind the JSON of its arguments so far.
        id: identifier, in the first event of a call; else None.
        name: name of the function, in the first event; else None.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


AnswerEvent = TextEvent | ReasoningEvent | CallEvent
"""What a token adds to an answer."""


def join_events(events: Iterable[AnswerEvent]) -> list[AnswerEvent]:
    """Returns events with neighbours as one that go on with the same."""
    found = list[AnswerEvent]()
    for event in events:
        last = found[-1] if found else None
        if isinstance(last, CallEvent) and isinstance(event, CallEvent):
            if last.id is None and event.id is None:  # arguments of the same call
                found[-1] = replace(last, arguments=last.arguments + event.arguments)
                continue
        elif isinstance(last, TextEvent) and isinstance(event, TextEvent):
            found[-1] = TextEvent(last.text + event.text)
            continue
        elif isinstance(last, ReasoningEvent) and isinstance(event, ReasoningEvent):
            found[-1] = ReasoningEvent(last.text + event.text)
            continue
        found.append(event)
    return found


class CharacterDecoder:
    """Decodes tokens as they come, without ever returning part of a character.

    A decoder may treat the first token of a text differently (a leading space), and the bytes of
    one character may lie in several tokens. So each new piece is the difference of two decodings of
    a short window: the tokens of the previous piece, without and with the new ones.

    Args:
        tokenizer: Tokenizer of the tokens to come.
        context: Tokens before them, whose text is not returned. Needed if the text may go on with a
            space.
        shown: Special tokens that are shown, with their texts.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context: Sequence[int] = (),
        shown: Mapping[int, str] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._special = shown or {}
        self._window = list(context)
        self._settled = len(self._window)  # number of tokens in the window whose text was returned
        self._shown = tokenizer.decode(self._window)

    def push(self, *tokens: int) -> str:
        """Returns the text that `tokens` complete; an incomplete character waits for its rest."""
        # One by one, so that the text does not depend on how tokens are grouped: some decoders show
        # nothing of bytes that end inside a character, not even the characters before it.
        return "".join([self._push(token) for token in tokens])

    def flush(self) -> str:
        """Returns the held back text after the last token; an incomplete character is U+FFFD."""
        return self._settle(self._piece())

    def _push(self, token: int) -> str:
        special = self._special.get(token)
        if special is not None:
            before = self.flush()
            self._window.append(token)
            return before + self._settle("") + special
        self._window.append(token)
        piece = self._piece()
        return "" if not piece or piece.endswith(_REPLACEMENT) else self._settle(piece)

    def _piece(self) -> str:
        """Returns the part of the window's text that was not returned yet."""
        text = self._tokenizer.decode(self._window)
        if text.startswith(self._shown):
            return text[len(self._shown) :]
        whole = self._shown.rstrip(_REPLACEMENT)
        if text.startswith(whole):  # the context ended inside a character, which continues here
            self._settled = 0
            self._shown = whole
            return text[len(whole) :]
        # A broken character has changed the text before it, which has already been returned.
        return self._tokenizer.decode(self._window[self._settled :])

    def _settle(self, piece: str) -> str:
        self._window = self._window[self._settled :]
        self._settled = len(self._window)
        self._shown = self._tokenizer.decode(self._window)
        return piece


class TextDecoder:
    """Turns the tokens of a text into events: whole characters only, up to the end of the text.

    What ends a text besides its tokens is looked for in the answer, not in reasoning or calls.

    Args:
        tokenizer: tokenizer of the target.
        prompt: tokens before the text.
        parser: tells reasoning, text and calls apart; None: all is text.
        ending: what ends the text besides its tokens; None: nothing does.
        stop_ids: tokens that end it, which are not shown.
        loops: ends it when it repeats itself; None: nothing does.

    Attributes:
        tokens: the tokens so far, with the one that ended the text.
        stopped: whether `ending` has ended the text.
        looped: whether `loops` has.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] = (),
        parser: AnswerParser | None = None,
        ending: Ending | None = None,
        stop_ids: frozenset[int] = frozenset(),
        loops: LoopMatcher | None = None,
    ) -> None:
        shown = dict[int, str]()
        if ending is not None:
            shown |= ending.marks
        if parser is not None:
            shown |= parser.marks
        self._characters = CharacterDecoder(tokenizer, prompt, shown)
        self._parser = parser
        self._ending = ending
        # An end token may be a mark that the parser or a stop string needs.
        self._hidden = stop_ids - shown.keys()
        self._loops = loops
        self._ends = [0]  # characters of the text up to each token, its end aside
        self._shown = 0  # characters before that
        self._held = 0  # characters of the answer that may be, or are, behind its end
        self.tokens: list[int] = []
        self.stopped = False
        self.looped = False

    @property
    def ended(self) -> bool:
        """Whether the text has ended before its limits."""
        return self.stopped or self.looped

    @property
    def stop(self) -> str | None:
        """The stop string that has ended the text; None if none has."""
        return None if self._ending is None else self._ending.stop

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
    def calls(self) -> tuple[ToolCall, ...]:
        """The complete tool calls so far."""
        return () if self._parser is None else tuple(self._parser.calls)

    @property
    def cut_call(self) -> ToolCall | None:
        """The call that is not complete yet."""
        return None if self._parser is None else self._parser.cut

    @property
    def reasoning_tokens(self) -> int:
        """The number of tokens of reasoning so far."""
        return 0 if self._parser is None else self._parser.reasoning_tokens

    def push(self, token: int) -> list[AnswerEvent]:
        """Adds a token of a text that has not ended; returns what is now final."""
        self.tokens.append(token)
        hidden = token in self._hidden
        text = "" if hidden else self._characters.push(token)
        self._ends.append(self._ends[-1] + len(self._without_marks(text)))
        events = [] if hidden else self._parsed(text, 1)
        self.looped = self._loops is not None and self._loops.push(token)
        return events

    def flush(self) -> list[AnswerEvent]:
        """Returns the rest behind the last token."""
        text = self._characters.flush()
        if self.looped:  # perhaps inside a character, of which the text has others
            text = text.rstrip(_REPLACEMENT)
        self._ends[-1] += len(text)
        events = self._parsed(text, 0)
        if self._parser is not None and not self.stopped:
            events += self._up_to_end(self._parser.finish())
            self._shown = self._ends[-1] - self._held
        held = "" if self._ending is None else self._ending.flush()
        self._shown += len(held)
        return [*events, TextEvent(held)] if held else events

    def _parsed(self, text: str, tokens: int) -> list[AnswerEvent]:
        """Returns what a text of so many tokens adds to the answer, up to its end."""
        events: list[AnswerEvent] = [TextEvent(text)]
        unread = ""
        if self._parser is not None:
            # Even where nothing is said, since the time until an end runs.
            events = [TextEvent(""), *self._parser.push(text, tokens)]
            unread = self._without_marks(self._parser.unread)
        events = self._up_to_end(events)
        self._shown = self._ends[-1] - len(unread) - self._held
        return events

    def _up_to_end(self, events: Iterable[AnswerEvent]) -> list[AnswerEvent]:
        """Returns events with what they say up to where the answer ends, and no mark."""
        if self._ending is None:
            return [each for each in events if not isinstance(each, TextEvent) or each.text]
        found = list[AnswerEvent]()
        for event in events:
            if isinstance(event, CallEvent):
                found.append(replace(event, arguments=self._without_marks(event.arguments)))
                continue
            text = self._without_marks(event.text)
            if isinstance(event, TextEvent):
                shown, self.stopped = self._ending.push(event.text)
                self._held += len(text) - len(shown)
                text = shown
            if text:
                found.append(replace(event, text=text))
        return found

    def _without_marks(self, text: str) -> str:
        return text if self._ending is None else self._ending.without_marks(text)
