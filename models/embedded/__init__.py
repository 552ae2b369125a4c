"""The model pair that comes with the package: a small model of Python code and its draft."""

from __future__ import annotations

from pathlib import Path

BUNDLE = Path(__file__).resolve().parent / "bundle"
"""The folder of the exported pair."""
