"""Whether anybody still waits for what a thread does."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

NOBODY_WAITS: ContextVar[Callable[[], bool]] = ContextVar("NOBODY_WAITS", default=lambda: False)
"""Tells work that takes long that it may end, with whatever error."""
