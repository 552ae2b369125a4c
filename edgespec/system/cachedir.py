"""The user's cache folder: measurements, learned values, verified hashes and compiled models."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from edgespec.system import records

_Record = TypeVar("_Record")

_log = logging.getLogger(__name__)


def cache_folder(name: str) -> Path | None:
    """Returns a sub-folder of the cache and creates it if needed; None if that is impossible.

    `EDGESPEC_CACHE` overrides the platform's usual location. A write-protected folder can still be
    read.
    """
    try:
        folder = _base() / name
    except RuntimeError as error:  # the user has no home directory
        _warn("the cache folder", str(error))
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        next(folder.iterdir(), None)
    except OSError as error:
        warn_unwritable(folder, error)
        return None
    return folder


def cache_file(name: str, facts: object) -> Path | None:
    """Returns the path of the record that belongs to these facts; None if there is no cache.

    Args:
        name: name of the sub-folder.
        facts: everything that the record depends on; its `repr` is hashed into the file name.
    """
    folder = cache_folder(name)
    if folder is None:
        return None
    return folder / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.json"


def store(file: Path | None, record: object) -> None:
    """Writes a dataclass as JSON, replacing the file atomically; only warns if it cannot.

    Args:
        file: path from `cache_file`; nothing is written if it is None.
        record: dataclass to write.
    """
    if file is None:
        return
    partial = file.with_suffix(f".partial-{os.getpid()}-{threading.get_ident()}")
    try:
        partial.write_text(json.dumps(records.encode(record)), encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        warn_unwritable(file.parent, error)
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def stored(file: Path | None, kind: type[_Record]) -> _Record | None:
    """Reads a dataclass that `store` has written; None if the file is missing or damaged."""
    if file is None:
        return None
    try:
        return records.decode(kind, json.loads(file.read_text(encoding="utf-8")), file.name)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        _log.info("%s cannot be used (%s) and is replaced", file, error)
        return None


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
