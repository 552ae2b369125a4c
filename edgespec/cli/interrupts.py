"""Ctrl-C while a text is made or a server runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.api.stream import TextStream


@contextmanager
def endings_unheard() -> Iterator[None]:
    """For a server that heeds them itself and repeats them when it has ended."""
    from uvicorn.server import HANDLED_SIGNALS  # on Windows Ctrl-Break, too, which ends services

    heard = {number: signal.getsignal(number) for number in HANDLED_SIGNALS}
    for number in heard:
        signal.signal(number, lambda _number, _frame: None)
    try:
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)


@contextmanager
def cancelled_by_sigint(stream: TextStream) -> Iterator[None]:
    """Ctrl-C ends the text after the round under way; a second one does not wait for it."""
    previous = signal.getsignal(signal.SIGINT)

    def cancel(_number: int, _frame: FrameType | None) -> None:
        stream.cancel()
        signal.signal(signal.SIGINT, previous)

    if previous is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
