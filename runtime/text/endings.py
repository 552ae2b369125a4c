"""What ends a text besides its tokens: strings, and lines."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence

from edgespec.errors import InputError

_SURROGATES, _MOST_MARKS = 0xD800, 0x800


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

    Attributes:
        found: the place among them of the one that was found; None before.

    Raises:
        InputError: If one of them is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise InputError("a stop string is empty: leave it out or give at least one character")
        self._stops = tuple(stops)
        self._held = ""
        self.found: int | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Takes the next piece of text.

        Returns:
            The text that can be shown now, and whether a stop string was found. After one was
            found, no text is returned any more.
        """
        if self.found is not None:
            return "", True
        text = self._held + text
        ends = [
            (start + len(stop), start, place)
            for place, stop in enumerate(self._stops)
            if (start := text.find(stop)) >= 0
        ]
        if ends:
            _, start, self.found = min(ends)
            self._held = ""
            return text[:start], True
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

    Attributes:
        ended: whether the text has ended.
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
        self.ended = False

    def push(self, text: str) -> tuple[str, bool]:
        """Takes the next piece of text.

        Returns:
            The text that can be shown now, and whether the text has ended. After that, no text is
            returned any more.
        """
        if self.ended:
            return "", True
        text = self._held + text
        self._held = ""
        end = self._end(text)
        if end is not None:
            self.ended = True
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


class Ending:
    """Ends a streamed text at a stop string or with a line, whichever comes first.

    Args:
        stop: see `StopMatcher`. They may name special tokens, which are no part of the text.
        min_indent: see `LineMatcher`.
        max_time: see `LineMatcher`.
        special: special tokens that no text shows, by their names.

    Attributes:
        marks: what to push for the special tokens that a stop string names, by their ids.
        stop: the stop string that has ended the text; None if none has.
    """

    def __init__(
        self,
        stop: Sequence[str] = (),
        min_indent: int = 0,
        max_time: float | None = None,
        special: Mapping[str, int] | None = None,
    ) -> None:
        given = tuple(stop)
        named = [name for name in special or {} if name and any(name in each for each in stop)]
        # Lone surrogates, which no text has, stand for the tokens; those of stop strings do not.
        free = sorted({chr(_SURROGATES + n) for n in range(_MOST_MARKS)} - set("".join(stop)))
        marks = dict(zip(named, free, strict=False))
        self.marks = {special[name]: mark for name, mark in marks.items()} if special else {}
        if marks:
            names = "|".join(map(re.escape, sorted(marks, key=len, reverse=True)))
            marked = [re.sub(names, lambda name: marks[name[0]], each) for each in stop]
            stop = (*stop, *marked)
        self.stop: str | None = None
        self._given = given
        self._unmarked = str.maketrans("", "", "".join(marks.values()))
        self._stops = StopMatcher(tuple(stop))
        self._lines = LineMatcher(min_indent, max_time)

    def without_marks(self, text: str) -> str:
        """Returns a text as `push` would show it, if it had no end."""
        return text.translate(self._unmarked)

    def push(self, text: str) -> tuple[str, bool]:
        """See `StopMatcher.push`."""
        text, stopped = self._stops.push(text)
        text, ended = self._lines.push(self.without_marks(text))
        if self._stops.found is not None and not ended:
            self.stop = self._given[self._stops.found % len(self._given)]
        return text, stopped or ended

    def flush(self) -> str:
        """See `StopMatcher.flush`."""
        held, _ = self._lines.push(self.without_marks(self._stops.flush()))
        return held + self._lines.flush()
