r"""Measures the house: lines of each room, options of commands, and modules that a step enters.

    python benchmarks/house.py [BUNDLE]    # the embedded pair if none is given

Lines are those of all files of a room, with docstrings and comments. A step is one round of
`LLM.stream`, from asking for the next piece to having it; a module counts once if one of its
functions is called.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from common import exit_code, print_result, print_table

from edgespec import LLM
from edgespec.cli.parsing import COMMANDS

if TYPE_CHECKING:
    from types import FrameType

_ROOT = Path(__file__).parent.parent


class Room(NamedTuple):
    """What counts to a room, and its lines.

    Attributes:
        files: patterns of its files.
        wanted: the most lines that were planned for it.
        held: the most lines that it may have today, which `tests/test_walls.py` checks.
        why: why more are held than were planned.
    """

    files: tuple[str, ...]
    wanted: int
    held: int
    why: str = ""


# Whoever adds a capability raises its room's number here, with the reason beside it.
ROOMS = {
    "edgespec": Room(
        ("edgespec/**/*.py",),
        9000,
        18250,
        "the server speaks three programs' APIs, with schemas of all fields, and renders Markdown "
        "for its page (4,400), several models (300); the authors' sampling and waiting lines; "
        "fifteen commands with help in two lengths, completion and wrapped answers (3,500); "
        "batches that survive kills, measuring, a doctor and tables to share (450), tuning, "
        "bundles made of models once and found again (500), asyncio and classes (130), "
        "images (340), heads on devices (40)",
    ),
    "models": Room(
        ("models/**/*.py",),
        7000,
        11800,
        "over thirty families, six of them with states, two with latents, experts in a dozen, six "
        "formats of weights, several streams (Gemma 3n, 250), drafters of blocks in three layouts, "
        "assistants (200), heads with masks (80), heads in GGUF files (180), "
        "what reads images (990)",
    ),
    "export": Room(
        ("export/**/*.py",),
        5000,
        7260,
        "graphs of other programs, portable graphs, latents (90), several streams of rows (160), "
        "drafters of blocks (120), assistants (110), convolutions in blocks (60), "
        "K-quants, what reads images (340), heads on devices (40), telling heads from models (90)",
    ),
    "runtime": Room(
        ("runtime/**/*.py",),
        9000,
        14190,
        "tool calls and reasoning in each family's form (3,500), ten draft sources (2,500), "
        "devices (2,100), penalties, grammars that are tried in a process with limits, and calls "
        "that are checked against schemas which grammars cannot hold (150), "
        "drafters of blocks (210), assistants and heads with masks (120), calls that a GPU "
        "records (50), what earlier sequences said "
        "(90), frequent tokens (50), calls that pay together (20), images "
        "(490), heads on devices (80)",
    ),
    "kernels": Room(("runtime/kernels/**/*.[ch]*",), 4000, 4200, "state spaces (Mamba-2)"),
    "training": Room(
        ("edgespec/training/**/*.py", "models/training/**/*.py"),
        3000,
        3450,
        "two kinds of heads that draft blocks, beside EAGLE-3's",
    ),
    "tests": Room(
        ("tests/**/*.py",),
        25000,
        42270,
        "every promise of docs/behaviours.md, attacks and clients of the server (5,400), families "
        "and formats of weights against transformers (7,500), makers of small models (4,600), a "
        "first day with a model that is no bundle (400), words and answers at terminals (350), "
        "programs and users of windows (300), asyncio and classes (250), what drafts "
        "learn of others (200), images (1,000), a server of several (450), "
        "heads on devices (170), a real model's folder (30)",
    ),
    "benchmarks": Room(("benchmarks/**/*.py",), 5000, 4900),
    "results": Room(("benchmarks/RESULTS.md",), 700, 660),
    "docs": Room(
        ("README.md", "docs/*.md"),
        1300,
        1920,
        "bundles made of models, several on a server, drafters of blocks, assistants, machines "
        "that were measured, whole programs in Python and what a newcomer sees (330), images, "
        "heads on devices",
    ),
}
PRODUCTION = "edgespec", "models", "export", "runtime", "training"
WANTED = 33000  # lines of production
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
    lines = {room: count(room) for room in ROOMS}
    print_table(
        ["room", "lines", "at most", "wanted"],
        [[room, lines[room], each.held, each.wanted] for room, each in ROOMS.items()]
        + [["production Python", sum(lines[room] for room in PRODUCTION), "", WANTED]],
    )
    options = {name: _options(name) for name in COMMANDS}
    print()
    print_table(["command", "options"], [[name, count] for name, count in options.items()])
    found = entered(given.bundle)
    for draft, modules in found.items():
        print(f"\n{len(modules)} modules in a step with draft {draft}: {', '.join(modules)}")
    counts = {draft: len(modules) for draft, modules in found.items()}
    print_result("house", {"lines": lines, "options": options, "modules": counts})


def count(room: str) -> int:
    """Returns the lines of a room's files, with docstrings and comments."""
    files = {path for pattern in ROOMS[room].files for path in _ROOT.glob(pattern)}
    if room != "training":
        files -= {path for pattern in ROOMS["training"].files for path in _ROOT.glob(pattern)}
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
    return {draft: _modules(llm, draft) for draft in STEP}


def _modules(llm: LLM, draft: str) -> list[str]:
    stream = llm.stream(_PROMPT, max_new_tokens=400, draft_source=draft)
    pieces, names = iter(stream), set[str]()

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
