"""Golden files: what a program says, kept to the letter and compared.

`EDGESPEC_GOLDEN=write pytest tests/golden` writes them anew; read their diff before a commit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree

from checkout import ROOT

from edgespec import export
from edgespec.export import ExportOptions

_CHECKPOINT = ROOT / "models/embedded/checkpoints/python-1m"
WRITES = os.environ.get("EDGESPEC_GOLDEN") == "write"


@contextmanager
def golden_file(path: Path):
    """Yields what checks a thing by name; all that was checked is written where that is asked."""
    kept = {} if WRITES or not path.exists() else json.loads(path.read_text("utf-8"))

    def check(name: str, found: object) -> None:
        if WRITES:
            kept[name] = found
        assert found == kept[name]

    yield check
    if WRITES:
        text = json.dumps(kept, indent=1, ensure_ascii=False)
        path.write_text(text + "\n", "utf-8")


Check = Callable[[str, object], None]


def shipped_bundle(folder: Path, template: str | None = None) -> Path:
    """Make a bundle of a checkpoint that the project ships, with a chat template if one is given.

    Its weights are not drawn at random, so that its texts are the same wherever tests run.
    """
    copytree(_CHECKPOINT, folder / "checkpoint")
    if template is not None:
        (folder / "checkpoint" / "chat_template.jinja").write_text(template, "utf-8")
    export.make(folder / "checkpoint", folder / "bundle", None, ExportOptions(precision="int8"))
    return folder / "bundle"
