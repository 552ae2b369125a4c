"""What is typed while nobody reads it stays out of what a terminal shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def echo_off() -> Iterator[None]:
    """Keeps keys and `^C` off the terminal until the end of the block.

    What was typed is not lost: the next line that is read begins with it. Nothing is changed where
    another program shares the terminal: in the background, and before a pager.
    """
    termios = _terminal_modes()
    if termios is None:
        yield
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    quiet = list(before)
    quiet[3] &= ~termios.ECHO  # the local modes
    termios.tcsetattr(number, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _terminal_modes() -> Any:
    """Returns the module that changes the terminal's modes; None where it is not ours to change."""
    try:
        termios = import_module("termios")  # which Windows has not, nor echoes while nobody reads
        number = sys.stdin.fileno()
        shared = not sys.stdout.isatty() or os.tcgetpgrp(number) != os.getpgrp()
        return None if shared or not os.isatty(number) else termios
    except (ImportError, OSError, AttributeError, ValueError):  # no terminal, or closed
        return None
