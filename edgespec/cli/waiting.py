"""The line on a terminal that says what a command does until it has something to print."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_shown: list[str] = []  # the line, if there is one


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Shows a text on stderr until the end of the block, if that is a terminal."""
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
