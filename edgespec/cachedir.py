"""The user's cache folder: measurements, verified hashes and engines' compiled models."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder(name: str) -> Path | None:
    """A sub-folder of the cache, made if need be; None where nothing can be written.

    `EDGESPEC_CACHE` overrides the platform's own place.
    """
    root = os.environ.get("EDGESPEC_CACHE")
    if root:
        base = Path(root)
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local")) / "edgespec"
    elif sys.platform == "darwin":
        base = Path.home() / "Library/Caches/edgespec"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "edgespec"
    try:
        (base / name).mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return base / name if os.access(base / name, os.W_OK) else None
