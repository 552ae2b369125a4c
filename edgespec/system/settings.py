"""The folder of a user's settings, which edgespec reads and never writes."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def settings_folder() -> Path | None:
    """Returns the folder, which may not exist; None if the user has no home directory."""
    try:
        if sys.platform == "win32":
            return Path(os.environ.get("APPDATA") or Path.home() / "AppData/Roaming") / "edgespec"
        if sys.platform == "darwin":
            return Path.home() / "Library/Application Support/edgespec"
        # The XDG specification says to ignore relative paths.
        folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
        return (folder if folder.is_absolute() else Path.home() / ".config") / "edgespec"
    except RuntimeError:
        return None
