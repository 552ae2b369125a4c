"""Pictures: files of them, opened safely, and the pieces that a model reads."""

from edgespec.runtime.vision.colours import require_pillow, upright
from edgespec.runtime.vision.files import MOST_BYTES, open_picture, seen
from edgespec.runtime.vision.pieces import (
    Picture,
    cut,
    looked_at,
    normalized,
    rows_of,
    written,
)

__all__ = [
    "MOST_BYTES",
    "Picture",
    "cut",
    "looked_at",
    "normalized",
    "open_picture",
    "require_pillow",
    "rows_of",
    "seen",
    "upright",
    "written",
]
