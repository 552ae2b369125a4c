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

HUB_PRECISION = re.compile(r"(\w[\w.-]*/\w[\w.-]*):([A-Za-z]\w+)")
"""A repository's file by its precision, as owner/name:Q4_K_M, or latest for the usual one."""

_ADDRESS = re.compile(
    r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/([^/:?#]+/[^/:?#]+)"
    r"(?:/(?:tree/[^/?#]+|(?:blob|resolve)/[^/?#]+/(?P<file>[^?#]+\.gguf)))?/?(?:[?#].*)?"
    r"(?P<precision>:\w+)?"
)

TOWER = "mmproj"
"""What names of files have that only read pictures for a model."""

# A file's precision by its name.
_FILE_TYPE = re.compile(r"(?:^|[-._/])((?:I?Q\d|TQ\d|MXFP4|NVFP4|BF16|F16|F32)\w*)", re.IGNORECASE)
_NO_MODELS = (TOWER, "imatrix")  # image towers, and statistics
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def hub_name(word: str) -> str:
    """Returns what a word means on the Hub: an address of it is owner/name, perhaps with a file.

    Any other word is returned as it is.
    """
    found = _ADDRESS.fullmatch(word)
    if found is None:
        return word.removesuffix(":latest") if HUB_PRECISION.fullmatch(word) else word
    behind = f":{found['file']}" if found["file"] else found["precision"] or ""
    return found[1] + behind.replace(":latest", "")


def precisions(name: str) -> list[str]:
    """Returns the precisions that a file's name tells; none for what is no model."""
    if not name.lower().endswith(SUFFIX) or any(word in name.lower() for word in _NO_MODELS):
        return []
    return [each.upper() for each in _FILE_TYPE.findall(name)]


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
