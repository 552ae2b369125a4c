"""The user's cache folder: measurements, verified hashes and engines' compiled models."""

from __future__ import annotations

import logging
import os
import sys
from functools import cache
from pathlib import Path

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
