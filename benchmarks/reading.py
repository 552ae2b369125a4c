"""How well bundles predict a text, by `edgespec eval` in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from edgespec import bundle as bundles

if TYPE_CHECKING:
    from pathlib import Path


def evaluated(bundle: Path, reference: Path, text: Path, **options: object) -> dict[str, Any]:
    """What `edgespec eval` says of a bundle, and of how far it is from a reference.

    Args:
        bundle: Whose target reads the text.
        reference: Another bundle of the same model.
        text: A UTF-8 file.
        options: Of the command, by their names; those that are None are left out.

    Raises:
        subprocess.CalledProcessError: The command failed, which has said why.
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
    """Of a bundle's target, its graphs left out."""
    manifest = bundles.load(path).manifest
    files = {stage.data for stage in manifest.roles[bundles.TARGET].stages}
    return sum(manifest.files[file].size for file in files)
