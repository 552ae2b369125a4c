"""The user's cache folder: measurements, verified hashes and engines' compiled models."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder(name: str) -> Path | None:
    """A sub-folder of the cache, made if need be; None where nothing can be written.

    `EDGESPEC_CACHE` overrides the platform's own place.
    """
    try:
        folder = _base() / name
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a RuntimeError: the user has no home
        return None
    return folder if os.access(folder, os.W_OK) else None


def _base() -> Path:
    if root := os.environ.get("EDGESPEC_CACHE"):
        return Path(root)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "edgespec"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/edgespec"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgespec"
