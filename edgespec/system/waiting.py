"""Whether anybody still waits for what a thread does."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from edgespec.errors import InputError

NOBODY_WAITS: ContextVar[Callable[[], bool]] = ContextVar("NOBODY_WAITS", default=lambda: False)
"""Tells work that takes long that it may end, with whatever error."""


def require_waiting() -> None:
    """Ends work that nobody waits for any more; called between its steps.

    Raises:
        InputError: if nobody waits for it.
    """
    if NOBODY_WAITS.get()():
        raise InputError("nobody waits for the answer any more: ask again")
