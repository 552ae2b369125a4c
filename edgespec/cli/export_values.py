"""Values of arguments of `edgespec export`, for its help and for what it does."""

from __future__ import annotations

from pathlib import Path

AUTO = "auto"
NONE = "none"
BUILT_IN = Path()
"""The file of a text that is built in."""
