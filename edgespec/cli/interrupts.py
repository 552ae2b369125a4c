"""Ctrl-C while a text is made or a server runs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.llm.stream import Stream


def ignoring_termination() -> AbstractContextManager[None]:
    """Ignores termination signals, for a server that handles them and raises them again at its end.

    On Windows, Ctrl-Break, which ends services, is one of them.
    """
    from uvicorn.server import HANDLED_SIGNALS

    return _handled(HANDLED_SIGNALS, lambda: None, once=False)


def cancelled_by_sigint(stream: Stream) -> AbstractContextManager[None]:
    """Lets Ctrl-C end the text after the current round; a second Ctrl-C does not wait for it."""
    return _handled([signal.SIGINT], stream.cancel)


@contextmanager
def noted_interrupts(then: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Yields whether Ctrl-C or a request to terminate has come; a second one does not wait.

    Args:
        then: called by the signal handler when one has come.
    """
    noted: list[bool] = []

    def note() -> None:
        noted.append(True)
        then()

    with _handled([signal.SIGINT, signal.SIGTERM], note):
        yield lambda: bool(noted)


@contextmanager
def _handled(
    numbers: Iterable[int], handle: Callable[[], None], once: bool = True
) -> Iterator[None]:
    """Calls a function when a signal comes, at the first one or always.

    What is ignored, as in a shell's background jobs, stays so.
    """
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def come(_number: int, _frame: FrameType | None) -> None:
        if once:
            restore()
        handle()

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, come)
    try:
        yield
    finally:
        restore()
