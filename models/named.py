"""How models are named: files of llama.cpp, and repositories on the Hugging Face Hub."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SUFFIX = ".gguf"
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
HUB_FILE = re.compile(r"(\w[\w.-]*/\w[\w.-]*):([\w./ -]+\.gguf)")
"""One file of a repository that has a model in many precisions, as owner/name:q4/model.gguf."""

TOWER = "mmproj"
"""What names of files have that only read pictures for a model."""

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def parts(name: str) -> list[str]:
    """Returns the names of the files that a model was split into, given one of them.

    They are called model-00001-of-00003.gguf and so on; a file with any other name is whole.
    """
    match = _PART.fullmatch(name)
    if match is None:
        return [name]
    return [f"{match[1]}-{n:05}-of-{match[3]}{SUFFIX}" for n in range(1, int(match[3]) + 1)]


def tower_name(model: str, names: Iterable[str]) -> str | None:
    """Returns which file reads pictures for a model: of several, the one whose name is most alike.

    Args:
        model: Name of the model's file.
        names: Names of all files beside it.
    """
    lower = {each: each.lower() for each in sorted(names)}
    found = [each for each, low in lower.items() if TOWER in low and low.endswith(SUFFIX)]
    if TOWER in model.lower():
        return None
    return max(found, key=lambda each: _alike(model, each), default=None)


def tower_beside(file: Path) -> Path | None:
    """Returns the file that reads pictures for the model of a file, if there is one beside it."""
    name = tower_name(file.name, (each.name for each in file.parent.glob("*")))
    return None if name is None else file.with_name(name)


def _alike(model: str, tower: str) -> int:
    """Returns the number of letters with which both names begin."""
    stem = re.sub(f"{TOWER}[-_.]?", "", tower.lower())
    letters = zip(model.lower(), stem, strict=False)
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], letters))
