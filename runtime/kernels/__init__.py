"""Operators of our own for ONNX Runtime on CPUs, in C++; and where their library is."""

from __future__ import annotations

import os
from pathlib import Path

_NAME = "libedgespec.so"


def library() -> Path | None:
    """Returns the operators' library: that of EDGESPEC_LIBRARY, or the one built here; or None."""
    given = os.environ.get("EDGESPEC_LIBRARY")
    path = Path(given) if given else Path(__file__).parent / _NAME
    return path if path.is_file() else None
