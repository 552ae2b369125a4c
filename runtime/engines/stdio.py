"""What libraries print by themselves, kept off the terminal and out of pipes."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def silenced(stream: int) -> Iterator[None]:
    """Throw away what this process writes to stdout (1) or stderr (2), below Python, too."""
    try:
        kept = os.dup(stream)
    except OSError:  # there is none
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
    """Have C's and Python's buffers written, to where they belong so far."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or none
            stream.flush()
    with suppress(OSError, AttributeError, TypeError):  # no C library that is found so
        ctypes.CDLL(None).fflush(None)
