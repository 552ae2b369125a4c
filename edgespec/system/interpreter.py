"""The Python interpreter to use for work in a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

_NAMES = ("python", "pypy")

NO_CONSOLE: dict[str, Any] = {}
"""Arguments for `subprocess` that keep a console window from flashing up on Windows."""

if sys.platform == "win32":
    NO_CONSOLE["startupinfo"] = subprocess.STARTUPINFO(dwFlags=subprocess.STARTF_USESHOWWINDOW)


def interpreter() -> str | None:
    """Returns the path of the Python interpreter; None if Python is part of another program.

    A program that embeds Python, or was frozen as by PyInstaller, would start itself again.
    """
    program = sys.executable or ""
    if getattr(sys, "frozen", False) or not Path(program).name.lower().startswith(_NAMES):
        return None
    return program
