"""What PyInstaller is told of edgespec, and of packages that it needs: the files in `hooks`."""

from __future__ import annotations

from pathlib import Path


def hook_folders() -> list[str]:
    """Returns the folders of hooks: the entry point `pyinstaller40`."""
    return [str(Path(__file__).with_name("hooks"))]
