"""Where the files of the project lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder of the project."""

BENCHMARKS = ROOT / "benchmarks"
"""Scripts that measure; behind tests' own folders in `sys.path`, since some names are in both."""
