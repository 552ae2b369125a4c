"""Pictures of any mode and depth in colours of 8 bits, as other programs show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edgespec.errors import InputError, installing, reason

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 50_000_000
"""Pixels of a picture."""

_MOST_SIDE = 1 << 17  # each line takes memory, however short it is
_STRIP = 1 << 20  # pixels that are converted at a time
_ORIENTATION = 0x0112  # in Exif
_LEVELS = {"1": 1, "L;2": 3, "L;4": 15}  # the highest one in files of few bits


def require_pillow() -> None:
    """Checks that pictures can be opened.

    Raises:
        InputError: if Pillow is not installed.
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"images need Pillow, which is not installed: {installing('images')}"
        ) from error


def require_size(picture: Image) -> None:
    """Checks a picture before its pixels are read.

    Raises:
        InputError: if it is too large.
    """
    width, height = picture.size
    if width * height > MOST_PIXELS or max(width, height) > _MOST_SIDE:
        raise InputError(
            f"a picture has {width} x {height} pixels: give one of {MOST_PIXELS // 10**6} million "
            f"at most, and {_MOST_SIDE} on a side"
        )


def upright(picture: Image) -> Image:
    """Returns a picture in colours, as its camera was held, and on white where it was clear.

    Of 16 bits the upper 8 are shown, as browsers and stb_image do it. Profiles of colours are not
    applied, since models have learned from pictures without that.

    Raises:
        InputError: if it is too large, or cannot be converted.
    """
    require_size(picture)
    try:
        return in_colours(picture)
    except MemoryError:
        raise
    except Exception as error:  # pictures that users have made may raise anything
        raise InputError(f"a picture cannot be converted ({reason(error)})") from error


def in_colours(picture: Image) -> Image:
    """Reads a picture's pixels; see `upright`.

    Raises:
        Exception: if it is damaged; decoders raise anything.
    """
    from PIL import ImageOps

    coded = _coded(picture)
    picture.load()
    key = _key(picture.info.get("transparency"), coded)
    if picture.getexif().get(_ORIENTATION, 1) != 1:
        picture = ImageOps.exif_transpose(picture)
    if picture.mode == "RGB" and key is None:
        return picture
    return _by_strips(picture, key)


def _coded(picture: Image) -> str:
    """Returns how the pixels of a file are written, in Pillow's notation."""
    for tile in getattr(picture, "tile", ()):
        return str(tile.args)
    return ""


def _key(clear: Any, coded: str) -> Any:
    """Returns which value is clear, of the pixels as they are read; files name it as written."""
    if coded in _LEVELS and isinstance(clear, int):
        return clear * 255 // _LEVELS[coded]
    if coded == "RGB;16B" and isinstance(clear, tuple):
        return tuple(each >> 8 for each in clear)
    return clear


def _by_strips(picture: Image, key: Any) -> Image:
    """Converts a picture in strips, which take little memory."""
    from PIL import Image

    factor = _factor(picture)
    shown = Image.new("RGB", picture.size)
    width, height = picture.size
    lines = max(_STRIP // width, 1)
    for top in range(0, height, lines):
        strip = picture.crop((0, top, width, min(top + lines, height)))
        shown.paste(_converted(strip, factor, key), (0, top))
    return shown


def _converted(strip: Image, factor: float, key: Any) -> Image:
    from PIL import Image

    if key is not None:
        strip.info["transparency"] = key
    if factor:
        values = np.asarray(strip)
        shades = np.nan_to_num(values * factor).clip(0, 255).astype(np.uint8)
        grey = Image.fromarray(np.where(values == key, np.uint8(255), shades))
        return grey.convert("RGB")
    if "A" not in strip.getbands() and key is None:
        return strip.convert("RGB")
    white = Image.new("RGBA", strip.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, strip.convert("RGBA")).convert("RGB")


def _factor(picture: Image) -> float:
    """Returns what makes 8 bits of a deep grey picture's values; 0 if it has not more.

    Those of 32 bits do not say what is white: it is taken to be 1, 255 or 65,535.
    """
    if picture.mode.startswith("I;16"):
        return 1 / 256
    if picture.mode not in ("I", "F"):
        return 0
    most = float(np.fmax.reduce(np.asarray(picture), axis=None))  # without what is no number
    if picture.mode == "F" and most <= 1:
        return 255
    return 1 if most <= 255 else 1 / 256
