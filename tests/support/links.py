"""Symbolic links, where the system allows tests to make them."""

from __future__ import annotations

from pathlib import Path

import pytest


def linked(path: Path, target: Path) -> Path:
    """Make `path` a link to `target`, or skip the test."""
    try:
        path.symlink_to(target, target_is_directory=target.is_dir())
    except OSError:
        pytest.skip("no symbolic links here")
    return path
