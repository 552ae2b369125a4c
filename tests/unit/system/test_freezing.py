"""What PyInstaller finds of the package; tests/e2e/test_frozen.py freezes programs."""

from __future__ import annotations

import ast
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

from checkout import ROOT


def test_pyinstaller_is_led_to_hooks_that_are_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [(name, value)] = project["entry-points"]["pyinstaller40"].items()
    [folder] = map(Path, EntryPoint(name, value, "pyinstaller40").load()())
    assert name == "hook-dirs"
    assert {"hook-edgespec.py", "hook-llguidance.py"} <= {each.name for each in folder.iterdir()}
    first = ast.literal_eval((folder / "rthooks.dat").read_text("utf-8"))
    assert first.keys() == {"edgespec"}
    assert all((folder / "rthooks" / each).exists() for [each] in first.values())
