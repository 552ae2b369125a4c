"""Processes that run a module of ours, also of programs that bring no Python interpreter.

In a program that was frozen, as by PyInstaller, or that embeds Python, `sys.executable` is the
program itself. Whatever it starts begins with the program's own first line, as with
`multiprocessing`. In one that Nuitka compiled, `sys.executable` may name a file that is not there.
"""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from pathlib import Path

from edgespec.errors import InputError

_MARK = "--edgespec-child"
_becomes_children = threading.Event()


def has_interpreter() -> bool:
    """Whether `sys.executable` is a Python interpreter instead of a program of its own."""
    name = Path(sys.executable or "").name.lower()
    frozen = hasattr(sys, "frozen") or _is_compiled()
    return not frozen and name.startswith(("python", "pypy"))


def _is_compiled() -> bool:
    return "__compiled__" in globals()  # by Nuitka


def freeze_support() -> None:
    """Makes a frozen program able to have the children that edgespec looks at strangers' data in.

    Call it first in the main module, as `multiprocessing.freeze_support`; for PyInstaller a hook
    does. Where the program was started as such a child, it does that work and ends. With an
    interpreter it does nothing.
    """
    if has_interpreter():
        return
    if sys.argv[1:2] == [_MARK]:
        main(*sys.argv[2:])
        sys.exit()
    _becomes_children.set()


def child_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that calls `main` of a module of ours in another process.

    Raises:
        InputError: if it would start this program a second time.
    """
    if has_interpreter():
        return [sys.executable, "-P", "-m", "edgespec.system.children", module, *arguments]
    program = sys.argv[0] if _is_compiled() else sys.executable
    if not _becomes_children.is_set():
        raise InputError(
            f"no process can look at this safely, since {program or 'this program'} is no Python "
            "interpreter: call edgespec.freeze_support() first in its main module"
        )
    return [program, _MARK, module, *arguments]


def main(module: str, *arguments: str) -> None:
    """Runs a child."""
    import_module(module).main(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
