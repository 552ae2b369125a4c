"""The user's cache folder: measurements, learned values, verified hashes and compiled models."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from functools import cache
from pathlib import Path

from edgespec.system.files import PRIVATE_FOLDER

_SEAL = "seal.json"
_INTACT = set[Path]()  # folders that this process has hashed

_log = logging.getLogger(__name__)


def cache_folder(name: str, private: bool = False) -> Path | None:
    """Returns a sub-folder of the cache and creates it if needed; None if that is impossible.

    `EDGESPEC_CACHE` overrides the platform's usual location. A write-protected folder can still be
    read. A private one that is created is for its owner alone.
    """
    try:
        folder = _base() / name
    except RuntimeError as error:  # the user has no home directory
        _warn("the cache folder", str(error))
        return None
    try:
        folder.mkdir(PRIVATE_FOLDER if private else 0o777, parents=True, exist_ok=True)
        next(folder.iterdir(), None)
    except OSError as error:
        warn_unwritable(folder, error)
        return None
    return folder


def seal(folder: Path) -> None:
    """Notes the hashes of what a folder of the cache holds now; only warns if it cannot."""
    try:
        (folder / _SEAL).write_text(json.dumps(_hashes(folder)), encoding="utf-8")
    except OSError as error:
        warn_unwritable(folder.parent, error)


def intact(folder: Path) -> bool:
    """Whether a folder of the cache holds what it held when it was sealed.

    Each is hashed when this process first asks.
    """
    if folder not in _INTACT:
        try:
            if json.loads((folder / _SEAL).read_text(encoding="utf-8")) != _hashes(folder):
                return False
        except (OSError, ValueError, RecursionError):
            return False
        _INTACT.add(folder)
    return True


def _hashes(folder: Path) -> dict[str, str]:
    found = {}
    for file in sorted(folder.iterdir()):
        if file.name != _SEAL and not file.is_dir():
            with file.open("rb") as content:
                found[file.name] = hashlib.file_digest(content, "sha256").hexdigest()
    return found


def warn_unwritable(folder: Path, error: OSError) -> None:
    """Warns once per process that a sub-folder of the cache cannot be written."""
    _warn(f"the cache folder {folder.parent}", error.strerror or str(error))


@cache
def _warn(where: str, reason: str) -> None:
    _log.warning(
        "cannot write to %s (%s), so every load takes longer: set EDGESPEC_CACHE "
        "to a writable folder",
        where,
        reason,
    )


def _base() -> Path:
    if root := os.environ.get("EDGESPEC_CACHE"):
        return Path(root).expanduser()  # no shell expands ~ in a service's settings file
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "edgespec"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/edgespec"
    # The XDG specification says to ignore relative paths.
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (caches if caches.is_absolute() else Path.home() / ".cache") / "edgespec"
