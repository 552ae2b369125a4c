"""Runs `edgespec eval` in a separate process, to measure how well bundles predict a text."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from edgespec import bundle as bundles

if TYPE_CHECKING:
    from pathlib import Path


def evaluated(bundle: Path, reference: Path, text: Path, **options: object) -> dict[str, Any]:
    """Returns the results of `edgespec eval` for a bundle, compared with a reference.

    Args:
        bundle: The bundle.
        reference: Another bundle of the same model.
        text: A UTF-8 file.
        options: Options of the command by name; those that are None are left out.

    Raises:
        subprocess.CalledProcessError: The command failed; it has printed the reason.
    """
    command = [
        sys.executable, "-m", "edgespec", "eval", str(bundle), "--against", str(reference),
        "--text", str(text), "--json",
    ]  # fmt: skip
    for name, value in options.items():
        if value is not None:
            command += [f"--{name}", str(value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def weight_bytes(path: Path) -> int:
    """Returns the bytes of the target's weights, without its graphs."""
    manifest = bundles.load(path).manifest
    files = {stage.data for stage in manifest.roles[bundles.TARGET].stages}
    return sum(manifest.files[file].size for file in files)
