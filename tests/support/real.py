"""Real checkpoints, in a folder that `EDGESPEC_REAL_MODELS` names, and bundles of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("EDGESPEC_REAL_MODELS", ""))


def needs(name: str) -> pytest.MarkDecorator:
    """Returns the mark of tests that are skipped without this checkpoint."""
    return pytest.mark.skipif(
        "EDGESPEC_REAL_MODELS" not in os.environ or not (FOLDER / name).is_dir(),
        reason=f"EDGESPEC_REAL_MODELS names no folder with {name}",
    )


def export(name: str, folder: Path, *options: str) -> Path:
    """Export a checkpoint as a user does; returns the bundle."""
    from edgespec.cli import main

    assert main(["export", str(FOLDER / name), "-o", str(folder / "bundle"), *options]) == 0
    return folder / "bundle"
