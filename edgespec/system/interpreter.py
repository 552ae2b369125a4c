"""The interpreter for what should not stay in this process: it is a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

_NAMES = ("python", "pypy")

UNSEEN: dict[str, Any] = {}
"""For `subprocess`: a program without a console would see one flash up on Windows."""

if sys.platform == "win32":
    UNSEEN["startupinfo"] = subprocess.STARTUPINFO(dwFlags=subprocess.STARTF_USESHOWWINDOW)


def interpreter() -> str | None:
    """The program to give Python code to; None where Python is part of another program.

    That one, be it frozen as by PyInstaller or only embed Python, would begin once more.
    """
    program = sys.executable or ""
    if getattr(sys, "frozen", False) or not Path(program).name.lower().startswith(_NAMES):
        return None
    return program
