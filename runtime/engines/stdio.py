"""Suppresses what libraries print to stdout or stderr by themselves."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def silenced(stream: int) -> Iterator[None]:
    """Discards what this process writes to stdout (1) or stderr (2), from C libraries too."""
    try:
        kept = os.dup(stream)
    except OSError:  # the stream is closed
        yield
        return
    _flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    try:
        yield
    finally:
        _flush()
        os.dup2(kept, stream)
        os.close(kept)
        os.close(nowhere)


def _flush() -> None:
    """Flushes Python's and C's buffers to the current streams."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or None
            stream.flush()
    with suppress(OSError, AttributeError, TypeError):  # no C library is found this way
        ctypes.CDLL(None).fflush(None)
