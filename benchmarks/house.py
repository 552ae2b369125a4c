r"""Measures the package: lines of each folder, options of commands, modules that a step enters.

    python benchmarks/house.py [BUNDLE]    # the embedded pair if none is given

Lines are those of all files of a folder, with docstrings and comments. A step is one round of
`LLM.stream`, from asking for the next piece to having it; a module counts once if one of its
functions is called.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from common import exit_code, print_result, print_table, with_all_threads

from edgespec import LLM
from edgespec.cli.parsing import COMMANDS

if TYPE_CHECKING:
    from types import FrameType

_ROOT = Path(__file__).parent.parent


FOLDERS = {
    "edgespec": ("edgespec/**/*.py",),
    "models": ("models/**/*.py",),
    "export": ("export/**/*.py",),
    "runtime": ("runtime/**/*.py",),
    "kernels": ("runtime/kernels/**/*.[ch]*",),
    "training": ("edgespec/training/**/*.py", "models/training/**/*.py"),
    "tests": ("tests/**/*.py",),
    "benchmarks": ("benchmarks/**/*.py",),
    "results": ("benchmarks/RESULTS.md",),
    "docs": ("README.md", "docs/*.md"),
}
"""Patterns of files by folder. Their lines are printed, not held: a budget breeds dense code."""

PRODUCTION = "edgespec", "models", "export", "runtime", "training"
# Modules of a step by draft: wanted, and held. Once in a while `auto` begins to read with its draft
# model in one of the traced steps, which enters what sequences share, too.
STEP = {"none": (12, 12), "auto": (20, 22)}
_PROMPT = "def mean(values):\n    return sum(values) / len(values)\n\ndef mean(values):\n"
_WARM_UP, _STEPS = 8, 8  # rounds before the traced ones, and those


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("bundle", type=Path, nargs="?")
    given = parser.parse_args()
    lines = {folder: count(folder) for folder in FOLDERS}
    print_table(
        ["folder", "lines"],
        [*lines.items(), ("production Python", sum(lines[folder] for folder in PRODUCTION))],
    )
    options = {name: _options(name) for name in COMMANDS}
    print()
    print_table(["command", "options"], [[name, count] for name, count in options.items()])
    found = entered(given.bundle)
    for draft, modules in found.items():
        print(f"\n{len(modules)} modules in a step with draft {draft}: {', '.join(modules)}")
    counts = {draft: len(modules) for draft, modules in found.items()}
    print_result("house", {"lines": lines, "options": options, "modules": counts})


def count(folder: str) -> int:
    """Returns the lines of a folder's files, with docstrings and comments."""
    files = {path for pattern in FOLDERS[folder] for path in _ROOT.glob(pattern)}
    if folder != "training":
        files -= {path for pattern in FOLDERS["training"] for path in _ROOT.glob(pattern)}
    return sum(len(path.read_text("utf-8").splitlines()) for path in files)


class _Raw(argparse.RawDescriptionHelpFormatter):
    pass


def _options(command: str) -> int:
    """Returns the number of options that a command has."""
    parser = argparse.ArgumentParser(add_help=False)
    import_module(f"edgespec.cli.commands.{command.replace('-', '_')}").configure(parser)
    return sum(len(action.option_strings) > 0 for action in parser._actions)


def entered(path: Path | None = None) -> dict[str, list[str]]:
    """Returns the modules that steps enter, by draft source; None: of the embedded pair."""
    llm = LLM(path, context=512)
    with with_all_threads():
        return {draft: _modules(llm, draft) for draft in STEP}


def _modules(llm: LLM, draft: str) -> list[str]:
    stream = llm.stream(_PROMPT, max_new_tokens=400, draft_source=draft)
    pieces = iter(stream)
    names = set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            names.add(frame.f_globals.get("__name__", ""))

    while len(stream.rounds) < _WARM_UP:
        next(pieces)
    sys.setprofile(note)
    try:
        for _ in range(_STEPS):
            next(pieces, None)  # the text may have ended
    finally:
        sys.setprofile(None)
        stream.cancel()
    return sorted(name for name in names if name.startswith("edgespec."))


if __name__ == "__main__":
    sys.exit(exit_code(main))
