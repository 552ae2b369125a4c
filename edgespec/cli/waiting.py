"""Lines on stderr: what a command does until it has something to print, and notices."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from edgespec.cli.echo import echo_off
from edgespec.cli.terminal import tell

_shown: list[str] = []  # the line, if there is one
_kept: list[list[str]] = []  # lines that wait for the end of each text that is being shown


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Shows a text on stderr until the end of the block, if that is a terminal, and no keys."""
    with echo_off():
        if sys.stderr is not None and sys.stderr.isatty():
            clear_line()
            _shown.append(f"{text} …")
            print(_shown[-1], end="", file=sys.stderr, flush=True)
        try:
            yield
        finally:
            clear_line()


def clear_line() -> None:
    """Removes the line, for what is printed meanwhile."""
    if _shown:
        print(f"\r{' ' * len(_shown.pop())}\r", end="", file=sys.stderr, flush=True)


def notice(line: str) -> None:
    """Prints a line on stderr, or keeps it until the end of the text that is being shown."""
    if _kept:
        _kept[-1].append(line)
        return
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
