"""Processes that run a module of ours, also of programs that bring no Python interpreter.

In a program that was frozen, as by PyInstaller, or that embeds Python, `sys.executable` is the
program itself. Whatever it starts begins with the program's own first line, as with
`multiprocessing`.
"""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from pathlib import Path

from edgespec.errors import InputError

_MARK = ["-P", "-m", "edgespec.system.children"]
_becomes_children = threading.Event()


def has_interpreter() -> bool:
    """Whether `sys.executable` is a Python interpreter instead of a program of its own."""
    name = Path(sys.executable or "").name.lower()
    return not hasattr(sys, "frozen") and name.startswith(("python", "pypy"))


def freeze_support() -> None:
    """Makes a frozen program able to have the children that edgespec looks at strangers' data in.

    Call it first in the main module, as `multiprocessing.freeze_support`. Where the program was
    started as such a child, it does that work and ends. With an interpreter it does nothing.
    """
    if has_interpreter():
        return
    if sys.argv[1:4] == _MARK:
        main(*sys.argv[4:])
        sys.exit()
    _becomes_children.set()


def child_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that calls `main` of a module of ours in another process.

    Raises:
        InputError: if it would start this program a second time.
    """
    if not has_interpreter() and not _becomes_children.is_set():
        raise InputError(
            f"no process can look at this safely, since {sys.executable or 'this program'} is no "
            "Python interpreter: call edgespec.freeze_support() first in its main module"
        )
    return [sys.executable, *_MARK, module, *arguments]


def main(module: str, *arguments: str) -> None:
    """Runs a child."""
    import_module(module).main(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
