"""Ctrl-C while a text is made or a server runs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.api.generation import GenerationStream


@contextmanager
def ignoring_termination() -> Iterator[None]:
    """Ignores termination signals, for a server that handles them and raises them again at its end.

    On Windows, Ctrl-Break, which ends services, is one of them.
    """
    from uvicorn.server import HANDLED_SIGNALS

    handlers = {number: signal.getsignal(number) for number in HANDLED_SIGNALS}
    for number in handlers:
        signal.signal(number, lambda _number, _frame: None)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def cancelled_by_sigint(stream: GenerationStream) -> Iterator[None]:
    """Lets Ctrl-C end the text after the current round; a second Ctrl-C does not wait for it."""
    previous = signal.getsignal(signal.SIGINT)

    def cancel(_number: int, _frame: FrameType | None) -> None:
        stream.cancel()
        signal.signal(signal.SIGINT, previous)

    if previous is not signal.SIG_IGN:  # ignored, for example, in a shell's background jobs
        signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def noted_interrupts(then: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Yields whether Ctrl-C or a request to terminate has come; a second one does not wait.

    Args:
        then: called by the signal handler when one has come.
    """
    noted: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _frame: FrameType | None) -> None:
        noted.append(number)
        for each, handler in handlers.items():
            signal.signal(each, handler)
        then()

    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, note)
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
