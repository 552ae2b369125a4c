"""The user's cache folder: what was measured and learned, verified hashes, compiled models."""

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
    """A sub-folder of the cache, made if need be; None where there is none.

    `EDGESPEC_CACHE` overrides the platform's own place. One that is write-protected can be read.
    """
    try:
        folder = _base() / name
    except RuntimeError as error:  # the user has no home
        _warn("the cache", str(error))
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        next(folder.iterdir(), None)
    except OSError as error:
        not_kept(folder, error)
        return None
    return folder


def cache_file(name: str, facts: object) -> Path | None:
    """The file of a record in a sub-folder, one for all facts that it depends on; None: no folder.

    Args:
        name: of the sub-folder.
        facts: whose `repr` tells them from all others.
    """
    folder = cache_folder(name)
    if folder is None:
        return None
    return folder / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.json"


def store(file: Path | None, record: object) -> None:
    """Replace a file by a dataclass, as a whole or not at all; where none can be, nothing is."""
    if file is None:
        return
    partial = file.with_suffix(f".partial-{os.getpid()}-{threading.get_ident()}")
    try:
        partial.write_text(json.dumps(records.encode(record)), encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        not_kept(file.parent, error)
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def stored(file: Path | None, kind: type[_Record]) -> _Record | None:
    """The dataclass in a file; None if there is none, or it is damaged."""
    if file is None:
        return None
    try:
        return records.decode(kind, json.loads(file.read_text(encoding="utf-8")), file.name)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        _log.info("%s is of no use (%s): it is made anew", file, error)
        return None


def not_kept(folder: Path, error: OSError) -> None:
    """Say, once a process, that a sub-folder of the cache does not take what it should keep."""
    _warn(str(folder.parent), error.strerror or str(error))


@cache
def _warn(where: str, reason: str) -> None:
    _log.warning(
        "nothing is kept in %s (%s), so that loading takes longer every time: set EDGESPEC_CACHE "
        "to a folder that can be written to",
        where,
        reason,
    )


def _base() -> Path:
    if root := os.environ.get("EDGESPEC_CACHE"):
        return Path(root).expanduser()  # which files of settings leave to programs
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "edgespec"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/edgespec"
    # The specification has relative ones ignored: each working folder would have its own.
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (caches if caches.is_absolute() else Path.home() / ".cache") / "edgespec"
