"""Decoding of tokens as they come."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgespec.errors import InputError
from edgespec.runtime.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_SURROGATES, _MOST_MARKS = 0xD800, 0x800


class StreamDecoder:
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


@dataclass(frozen=True)
class ToolCall:
    """A tool call of an answer, which nobody has executed.

    Attributes:
        id: identifier, for the message with the tool's result.
        name: name of the function.
        text: arguments as the model wrote them, a JSON object.
    """

    id: str
    name: str
    text: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name."""
        arguments: dict[str, Any] = json.loads(self.text)
        return arguments

    @property
    def message(self) -> dict[str, Any]:
        """The call as messages of OpenAI's API hold it."""
        function = {"name": self.name, "arguments": self.text}
        return {"id": self.id, "type": "function", "function": function}


class AsWritten(str):
    """Arguments of a call that are no JSON object, which templates show as they are."""

    __slots__ = ()

    def items(self) -> list[tuple[str, str]]:
        """Returns them as the only argument, for templates that go through arguments."""
        return [("arguments", str(self))]


@dataclass(frozen=True)
class CallPiece:
    """A piece of a tool call.

    Attributes:
        index: number of the call in the answer, from 0.
        arguments: piece of the arguments' JSON.
        id: identifier, in the first piece of a call; else None.
        name: name of the function, in the first piece; else None.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Piece:
    """What a piece of a text adds to an answer.

    Attributes:
        text: text for the user.
        reasoning: reasoning.
        calls: pieces of tool calls.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()

    def __add__(self, other: Piece) -> Piece:
        calls = self.calls
        further = other.calls
        if calls and further and calls[-1].id is None and further[0].id is None:
            # Without an id, both are arguments of the same call.
            joined = replace(calls[-1], arguments=calls[-1].arguments + further[0].arguments)
            calls = (*calls[:-1], joined)
            further = further[1:]
        return Piece(self.text + other.text, self.reasoning + other.reasoning, (*calls, *further))

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.calls)


def overlap(text: str, others: Sequence[str]) -> int:
    """Returns the length of the longest end of a text with which one of others begins.

    Args:
        text: a text that has none of the others in it.
        others: texts that are looked for.
    """
    longest = max(map(len, others), default=1) - 1
    lengths = range(min(longest, len(text)), 0, -1)
    return next((n for n in lengths if any(each.startswith(text[-n:]) for each in others)), 0)


_BLANK = r"\r?\n[ \t\r\n]*"  # the end of a line, blank ones behind it, and an indentation
_LINE = re.compile(rf"{_BLANK}(?=[^ \t\r\n])")
_UNDECIDED = re.compile(rf"(?:{_BLANK}|\r)\Z")


class StopMatcher:
    """Ends a streamed text before the first stop string, even if it spans several pieces.

    The first is the one that is complete first; of two that end together, the longer.

    Args:
        stops: Strings that end the text and are not part of it.

    Raises:
        InputError: If one of them is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise InputError("a stop string is empty: leave it out or give at least one character")
        self._stops = tuple(stops)
        self._held = ""
        self._found = False

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next piece of text.

        Returns:
            The text that can be shown now, and whether a stop string was found. After one was
            found, no text is returned any more.
        """
        if self._found:
            return "", True
        text = self._held + text
        ends = [
            (start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0
        ]
        if ends:
            self._found = True
            self._held = ""
            return text[: min(ends)[1]], True
        held = overlap(text, self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def flush(self) -> str:
        """Returns the text that was held back, after the last piece."""
        held = self._held
        self._held = ""
        return held


class LineMatcher:
    """Ends a streamed text with a line.

    Args:
        min_indent: minimum number of spaces and tabs before each line; the text ends with the line
            before one that has fewer. Blank lines, and the first one, may have any.
        max_time: seconds since the first piece after which the text ends with its line; None for
            any.
        clock: current time in seconds.
    """

    def __init__(
        self,
        min_indent: int,
        max_time: float | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._min_indent = min_indent
        self._max_time = max_time
        self._clock = clock
        self._begin: float | None = None
        self._held = ""
        self._ended = False

    def push(self, text: str) -> tuple[str, bool]:
        """Takes the next piece of text.

        Returns:
            The text that can be shown now, and whether the text has ended. After that, no text is
            returned any more.
        """
        if self._ended:
            return "", True
        text = self._held + text
        self._held = ""
        end = self._end(text)
        if end is not None:
            self._ended = True
            return text[:end], True
        if self._min_indent and (undecided := _UNDECIDED.search(text)):
            self._held = undecided[0]
            return text[: undecided.start()], False
        return text, False

    def flush(self) -> str:
        """Returns the text that was held back, after the last piece."""
        held = self._held
        self._held = ""
        return held

    def _end(self, text: str) -> int | None:
        """Returns where the text ends; None if it goes on."""
        if self._is_late():
            late = re.search(r"\r?\n", text)
            if late is not None:
                return late.start()
        for line in _LINE.finditer(text) if self._min_indent else ():
            if len(line[0]) - line[0].rindex("\n") - 1 < self._min_indent:
                return line.start()
        return None

    def _is_late(self) -> bool:
        if self._max_time is None:
            return False
        if self._begin is None:
            self._begin = self._clock()
        return self._clock() - self._begin > self._max_time


class TextEnd:
    """Ends a streamed text at a stop string or with a line, whichever comes first.

    Args:
        stop: see `StopMatcher`. They may name special tokens, which are no part of the text.
        min_indent: see `LineMatcher`.
        max_time: see `LineMatcher`.
        special: special tokens that no text shows, by their names.

    Attributes:
        marks: what to push for the special tokens that a stop string names, by their ids.
    """

    def __init__(
        self,
        stop: Sequence[str] = (),
        min_indent: int = 0,
        max_time: float | None = None,
        special: Mapping[str, int] | None = None,
    ) -> None:
        named = [name for name in special or {} if name and any(name in each for each in stop)]
        # Lone surrogates, which no text has, stand for the tokens; those of stop strings do not.
        free = sorted({chr(_SURROGATES + n) for n in range(_MOST_MARKS)} - set("".join(stop)))
        marks = dict(zip(named, free, strict=False))
        self.marks = {special[name]: mark for name, mark in marks.items()} if special else {}
        if marks:
            names = "|".join(map(re.escape, sorted(marks, key=len, reverse=True)))
            marked = [re.sub(names, lambda name: marks[name[0]], each) for each in stop]
            stop = (*stop, *marked)
        self._unmarked = str.maketrans("", "", "".join(marks.values()))
        self._stops = StopMatcher(tuple(stop))
        self._lines = LineMatcher(min_indent, max_time)
        self._any = bool(stop or min_indent or max_time is not None)

    def without_marks(self, text: str) -> str:
        """Returns a text as `push` would show it, if it had no end."""
        return text.translate(self._unmarked)

    def push(self, text: str) -> tuple[str, bool]:
        """See `StopMatcher.push`."""
        if not self._any:
            return text, False
        text, stopped = self._stops.push(text)
        text, ended = self._lines.push(self.without_marks(text))
        return text, stopped or ended

    def flush(self) -> str:
        """See `StopMatcher.flush`."""
        held, _ = self._lines.push(self.without_marks(self._stops.flush()))
        return held + self._lines.flush()
