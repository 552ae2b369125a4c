"""Lines on stderr: what a command does until it has something to print, and notices."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edgespec.cli.echo import echo_off
from edgespec.cli.terminal import tell

_TICK = 0.5  # seconds between two signs of life

_shown: list[str] = []  # the line, if there is one
_kept: list[list[str]] = []  # lines that wait for the end of each text that is being shown
_writing = threading.RLock()  # held by who writes to the terminal


@contextmanager
def waiting(text: str | Callable[[], str], delay: float = 0) -> Iterator[None]:
    """Shows a text on stderr until the end of the block, if that is a terminal, and no keys.

    A text that stays says after a while for how many seconds.

    Args:
        text: the text, or what returns it anew; it is asked for by another thread.
        delay: seconds before it is shown.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        with echo_off():
            yield
        return
    line = _Line(text)
    ended = threading.Event()
    with echo_off():
        if not delay:
            line.show()
        threading.Thread(target=_tick, args=(line, ended, delay), daemon=True).start()
        try:
            yield
        finally:
            ended.set()
            clear_line()


class _Line:
    """The line of a command that waits.

    Attributes:
        text: what it says now, which is what the terminal shows unless another line came.
    """

    def __init__(self, text: str | Callable[[], str]) -> None:
        self._text = text
        self._begun = time.perf_counter()
        self.text = ""

    def show(self) -> None:
        """Shows it in place of any other."""
        if callable(self._text):
            text = f"{self._text()} …"
        else:
            halves = int((time.perf_counter() - self._begun) / _TICK)
            text = f"{self._text} …" + f" {halves * _TICK:g} s" * (halves > 0)
        if text != self.text or not _shown:
            clear_line()
            self.text = text
            _shown.append(text)
            print(text, end="", file=sys.stderr, flush=True)


def _tick(line: _Line, ended: threading.Event, delay: float) -> None:
    """Shows a line anew until it has ended, or something else was printed in its place."""
    while not ended.wait(delay or _TICK):
        with _writing:
            over = ended.is_set() or (not delay and _shown != [line.text])
            if over:
                return
            line.show()
        delay = 0


def clear_line() -> None:
    """Removes the line, for what is printed meanwhile."""
    with _writing:
        if _shown:
            print(f"\r{' ' * len(_shown.pop())}\r", end="", file=sys.stderr, flush=True)


def notice(line: str) -> None:
    """Prints a line on stderr, or keeps it until the end of the text that is being shown."""
    if _kept:
        _kept[-1].append(line)
        return
    with _writing:
        clear_line()
        tell(line, stream=sys.stderr)


@contextmanager
def notices_kept() -> Iterator[None]:
    """Keeps notices back until the end of the block, so that none splits a line of a text."""
    _kept.append([])
    try:
        yield
    finally:
        for line in _kept.pop():
            notice(line)
