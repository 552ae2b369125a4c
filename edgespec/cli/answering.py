"""Shows an answer while it is made: words are wrapped, reasoning is folded, and notices wait."""

from __future__ import annotations

import os
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from shutil import get_terminal_size
from typing import TYPE_CHECKING, TextIO, TypeVar

from edgespec.cli.terminal import tell
from edgespec.cli.waiting import notices_kept, waiting
from edgespec.errors import harmless

if TYPE_CHECKING:
    from edgespec.llm.stream import Stream
    from edgespec.runtime.text.decoder import AnswerEvent

T = TypeVar("T")

_FENCE = "```"
_READING_DELAY = 0.3  # seconds before a prompt that takes long is said to be read


class WrappingWriter:
    """Writes a text piece by piece; on a terminal, no word is broken at the end of a line.

    The current word is held back until its end is known. Lines of code between fences stay as they
    are, for copying, and a terminal does nothing else than to show what a model writes.

    Args:
        stream: where to write; what is no terminal gets each piece as it is.
        dim: whether a terminal shows it less bright.

    Attributes:
        begun: whether anything was written.
    """

    def __init__(self, stream: TextIO, dim: bool = False) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._bright = not dim or not self._terminal or os.environ.get("TERM") == "dumb"
        self._column = 0
        self._gap = self._word = ""  # blanks and a word that were not written yet
        self._code = self.begun = False

    def write(self, text: str) -> None:
        """Writes what is certain with this piece."""
        if not self._terminal:
            self._out(text)
            return
        ready = ""
        for each in text:
            if each == "\n":
                ready += f"{self._ended()}{self._gap}\n"
                self._gap = ""
                self._column = 0
            elif each in " \t":
                ready += self._ended()
                self._gap += each
            elif _width(each) > 1:  # lines of Chinese and the like may end anywhere
                ready += self._ended()
                self._word = each
                ready += self._ended()
            else:
                self._word += each
        self._out(ready)

    def close(self) -> None:
        """Writes the rest."""
        self._out(self._ended() + self._gap)
        self._gap = ""

    def _ended(self) -> str:
        """Ends the current word; returns it with what parts it from the one before."""
        if not self._word:
            return ""
        word = harmless(self._word)
        gap = self._gap
        columns = get_terminal_size().columns
        if not self._column and word.startswith(_FENCE):
            self._code = not self._code
        wide = sum(map(_width, word))
        start = self._column
        self._column = len((" " * start + gap).expandtabs()) + wide
        if start and self._column > columns and not self._code:
            gap = "\n"
            self._column = wide
        self._gap = self._word = ""
        return gap + word

    def _out(self, text: str) -> None:
        if text:
            self.begun = True
            self._stream.write(text if self._bright else f"\x1b[2m{text}\x1b[0m")
            self._stream.flush()


def _width(character: str) -> int:
    """Returns the columns that a terminal gives to a character."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def read_first(pieces: Iterator[T], stream: Stream) -> Iterator[T]:
    """Yields pieces of a stream; until the first one comes, a line says how much was read."""
    begin = time.perf_counter()

    def reading() -> str:
        found = stream.prompt_progress
        new = found.read - found.reused
        total = found.total - found.reused
        passed = time.perf_counter() - begin
        left = found.seconds * total / new - passed if new > 0 else 0
        told = f"{left:.0f} s left" if left >= 1 else f"{passed:.1f} s so far"
        return f"reading {found.read:,} of {found.total:,} tokens, {told}"

    with waiting(reading, delay=_READING_DELAY):
        first = next(pieces, None)
    if first is not None:
        yield first
        yield from pieces


def answer_events(stream: Stream) -> Iterator[AnswerEvent]:
    """Returns what there is to show of a stream; see `read_first`."""
    from edgespec.runtime.text.decoder import AnswerEvent

    return read_first((each for each in stream.events() if isinstance(each, AnswerEvent)), stream)


def show(events: Iterable[AnswerEvent], thoughts: bool) -> None:
    """Shows an answer on stdout, and of its reasoning on stderr a line or, as `thoughts`, all.

    Calls of tools are left to who makes them.
    """
    from edgespec.runtime.text.decoder import CallEvent, ReasoningEvent

    text = WrappingWriter(sys.stdout)
    thought = WrappingWriter(sys.stderr, dim=True)
    began = 0.0  # while it reasons: when it has begun to
    called = whole = False
    with notices_kept(), ExitStack() as folded:

        def say_how_long() -> None:
            folded.close()
            end = "\n" * thoughts
            thought.write(f"{end}thought for {time.perf_counter() - began:.0f} s\n")

        try:
            for event in events:
                if isinstance(event, ReasoningEvent):
                    if not began and not thoughts:
                        folded.enter_context(waiting("it thinks"))
                    began = began or time.perf_counter()
                    thought.write(event.text * thoughts)
                    continue
                if began:
                    say_how_long()
                    began = 0.0
                if isinstance(event, CallEvent):
                    called = True
                    continue
                text.write(event.text)
            whole = not called
        finally:
            if began:
                say_how_long()
            text.close()
            if whole or text.begun:
                tell()


def say(text: str) -> None:
    """Tells the user, on stderr, what is no part of an answer."""
    told = WrappingWriter(sys.stderr)
    told.write(f"{text}\n")
