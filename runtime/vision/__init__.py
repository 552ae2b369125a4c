"""Pictures: files of them, opened safely, and the pieces that a model reads."""

from edgespec.runtime.vision.colours import require_pillow, upright
from edgespec.runtime.vision.files import MOST_BYTES, open_picture, seen
from edgespec.runtime.vision.pieces import (
    Picture,
    cut_picture,
    looked_at,
    normalized,
    picture_text,
    rows_of,
)

__all__ = [
    "MOST_BYTES",
    "Picture",
    "cut_picture",
    "looked_at",
    "normalized",
    "open_picture",
    "picture_text",
    "require_pillow",
    "rows_of",
    "seen",
    "upright",
]
