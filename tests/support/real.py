"""Real checkpoints, in a folder that `EDGESPEC_REAL_MODELS` names, and bundles of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

FOLDER = Path(os.environ.get("EDGESPEC_REAL_MODELS", ""))


def needs(name: str) -> pytest.MarkDecorator:
    """Returns the mark of tests that are skipped without this checkpoint or file."""
    return pytest.mark.skipif(
        "EDGESPEC_REAL_MODELS" not in os.environ or not (FOLDER / name).exists(),
        reason=f"EDGESPEC_REAL_MODELS names no folder with {name}",
    )


class Exports:
    """Exports checkpoints as a user does, each once for all processes that run tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def __call__(self, name: str, *options: str) -> Path:
        """Returns the bundle of a checkpoint or file; tests may change only copies."""
        from edgespec.cli import main

        path = self._folder / "".join([name, *options])
        with FileLock(f"{path}.lock"):
            if not path.exists():
                assert main(["export", str(FOLDER / name), "-o", str(path), *options]) == 0
        return path
