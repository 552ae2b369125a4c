r"""Measures the house: lines of each room, options of commands, and modules that a step enters.

    python benchmarks/house.py
    python benchmarks/house.py BUNDLE    # also the modules that a step of decoding enters

Lines are those of all files of a room, with docstrings and comments. A step is one round of
`LLM.stream`, from asking for the next piece to having it; a module counts once if one of its
functions is called.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from common import exit_code, print_result, print_table

from edgespec.api.llm import LLM
from edgespec.cli import COMMANDS

if TYPE_CHECKING:
    from types import FrameType

_ROOT = Path(__file__).parent.parent
_ROOMS = {  # what counts to a room, and the most lines that it may have
    "edgespec": ("edgespec/**/*.py", 9000),
    "models": ("models/**/*.py", 7000),
    "export": ("export/**/*.py", 5000),
    "runtime": ("runtime/**/*.py", 9000),
    "kernels": ("runtime/kernels/**/*.[ch]*", 4000),
    "training": ("training", 3000),
    "tests": ("tests/**/*.py", 25000),
    "benchmarks": ("benchmarks/**/*.py", 5000),
    "RESULTS.md": ("benchmarks/RESULTS.md", 700),
    "docs": ("docs/*.md", 0),
}
_TRAINING = ("edgespec/training", "models/training")
_PROMPT = "def mean(values):\n    return sum(values) / len(values)\n\ndef mean(values):\n"
_WARM_UP, _STEPS = 12, 8  # rounds before the traced ones, and those


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("bundle", type=Path, nargs="?")
    given = parser.parse_args()
    lines = {room: _lines(room, pattern) for room, (pattern, _) in _ROOMS.items()}
    rooms = "edgespec", "models", "export", "runtime", "training"
    production = sum(lines[room] for room in rooms)
    print_table(
        ["room", "lines", "at most"],
        [[room, lines[room], most or ""] for room, (_, most) in _ROOMS.items()]
        + [["production Python", production, 33000]],
    )
    options = {name: _options(name) for name in COMMANDS}
    print()
    print_table(["command", "options"], [[name, count] for name, count in options.items()])
    entered = {} if given.bundle is None else _entered(given.bundle)
    for draft, modules in entered.items():
        print(f"\n{len(modules)} modules in a step with draft {draft}: {', '.join(modules)}")
    counts = {draft: len(modules) for draft, modules in entered.items()}
    print_result("house", {"lines": lines, "options": options, "modules": counts})


class _Raw(argparse.RawDescriptionHelpFormatter):
    pass


def _lines(room: str, pattern: str) -> int:
    paths = [_ROOT / pattern] if "*" not in pattern else sorted(_ROOT.glob(pattern))
    if room == "training":
        paths = [path for folder in _TRAINING for path in (_ROOT / folder).rglob("*.py")]
    inside = [path for path in paths if path.is_file()]
    if room != "training":
        inside = [path for path in inside if not str(path.relative_to(_ROOT)).startswith(_TRAINING)]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in inside)


def _options(command: str) -> int:
    """Returns the number of options that a command has."""
    parser = argparse.ArgumentParser(add_help=False)
    import_module(f"edgespec.cli.commands.{command.replace('-', '_')}").configure(parser)
    return sum(len(action.option_strings) > 0 for action in parser._actions)


def _entered(path: Path) -> dict[str, list[str]]:
    """Returns the modules that steps enter, by draft source."""
    llm = LLM(path, context=1024)
    return {draft: _modules(llm, draft) for draft in ("none", "auto")}


def _modules(llm: LLM, draft: str) -> list[str]:
    stream = llm.stream(_PROMPT, max_new_tokens=200, draft_source=draft)
    pieces, names = iter(stream), set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            names.add(frame.f_globals.get("__name__", ""))

    while len(stream.rounds) < _WARM_UP:
        next(pieces)
    sys.setprofile(note)
    try:
        for _ in range(_STEPS):
            next(pieces)
    finally:
        sys.setprofile(None)
        stream.cancel()
    return sorted(name for name in names if name.startswith("edgespec."))


if __name__ == "__main__":
    sys.exit(exit_code(main))
