"""The pieces of a picture that a model reads.

With Idefics3 and SmolVLM a picture is scaled to a length and cut into squares, and all of it is the
last square; with Gemma 3 that is the only one. With Qwen3-VL it is whole, and keeps about its size,
and with Gemma 4 its proportions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgespec.bundle import PIXELS, PLACES
from edgespec.errors import InputError
from edgespec.runtime.arrays import Array, Floats

if TYPE_CHECKING:
    from PIL.Image import Image

    from edgespec.bundle import PixelGrid, Vision

_MOST_RATIO = 200
_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture as a model sees it.

    Attributes:
        grid: Rows and columns of the pieces into which it is cut; both 0 if there are none. With
            `Vision.grid` or `Vision.patch`, lines and columns of what the target reads.
        pieces: [rows * columns + 1, size, size, 3] uint8: these, and the whole picture; with
            `Vision.grid` or `Vision.patch` that alone, [1, height, width, 3].
    """

    grid: tuple[int, int]
    pieces: npt.NDArray[np.uint8]


def rows_of(picture: Picture, vision: Vision) -> int:
    """Returns how many rows the target reads of a picture."""
    if vision.grid is None and not vision.patch:
        return vision.rows * len(picture.pieces)
    return math.prod(picture.grid)


def cut_picture(picture: Image, vision: Vision) -> Picture:
    """Scales a picture and cuts it into pieces."""
    from PIL.Image import Resampling

    how = Resampling(vision.resample)
    size = vision.size
    if vision.grid is not None or vision.patch:
        if vision.grid is None:
            lines, columns = _kept(picture.size, vision)
        else:
            lines, columns = _fitted(picture.size, size, vision.grid)
        whole = picture.resize((columns * size, lines * size), how)
        return Picture((lines, columns), np.asarray(whole)[None])
    if not vision.longest:
        return Picture((0, 0), np.asarray(picture.resize((size, size), how))[None])
    height, width = scaled = _scaled(picture.size, vision)
    whole = picture.resize((width, height), how)
    parts = []
    if vision.split:
        height, width = _cut_size(scaled, vision)
        whole = whole.resize((width, height), how)
        if (height, width) != (size, size):
            parts = [
                whole.crop((left, top, left + size, top + size))
                for top in range(0, height, size)
                for left in range(0, width, size)
            ]
    if whole.size != (size, size):
        whole = whole.resize((size, size), how)
    grid = (height // size, width // size) if parts else (0, 0)
    return Picture(grid, np.stack([np.asarray(each) for each in (*parts, whole)]))


def normalized(piece: npt.NDArray[np.uint8], vision: Vision) -> Floats:
    """Returns what the tower reads of a piece [height, width, 3], [1, 3, height, width] float32."""
    mean, std = (np.array(each, np.float32) for each in (vision.mean, vision.std))
    colours: Floats = (piece.astype(np.float32) * np.float32(1 / 255) - mean) / std
    return np.ascontiguousarray(colours.transpose(2, 0, 1))[None]


def looked_at(piece: npt.NDArray[np.uint8], vision: Vision) -> dict[str, Array]:
    """Returns the inputs of the tower for a piece."""
    colours = normalized(piece, vision)
    if not vision.patch:
        return {PIXELS: colours}
    side = vision.size // vision.patch
    patch = vision.patch
    _, _, height, width = colours.shape
    rows = height // vision.size
    columns = width // vision.size
    parts = colours.reshape(3, rows, side, patch, columns, side, patch)
    patches = parts.transpose(1, 4, 2, 5, 3, 6, 0).reshape(-1, 3 * patch**2)
    places = np.stack(np.divmod(np.arange(rows * columns * side**2), columns * side)[::-1], -1)
    places = places.reshape(rows, side, columns, side, 2).transpose(0, 2, 1, 3, 4).reshape(-1, 2)
    return {PIXELS: np.ascontiguousarray(patches), PLACES: np.ascontiguousarray(places)}


def picture_text(grid: tuple[int, int], vision: Vision, texts: Callable[[int], str]) -> str:
    """Returns what stands in a prompt for a picture.

    Args:
        grid: see `Picture`.
        vision: how the model sees.
        texts: returns the texts of tokens.
    """
    rows, columns = grid
    if vision.grid is not None:
        return texts(vision.token) * (rows * columns)
    text = ""
    seen = texts(vision.token) * (rows * columns if vision.patch else vision.rows)
    if vision.around is not None:
        before, behind = map(texts, vision.around)
        if vision.patch:
            return f"{before}{seen}{behind}"
        return f"\n\n{before}{seen}{behind}\n\n"
    for row in range(1, rows + 1):
        of_row = (f"{_AROUND}<row_{row}_col_{each}>{seen}" for each in range(1, columns + 1))
        text += "".join(of_row) + "\n"
    return f"{text}{chr(10) * bool(rows)}{_AROUND}{_WHOLE}{seen}{_AROUND}"


def _kept(size: tuple[int, int], vision: Vision) -> tuple[int, int]:
    """Returns a picture's rows and columns, as many as there may be in about its proportions."""
    width, height = size
    factor = math.sqrt(vision.rows * vision.size**2 / (width * height))
    rows, columns = (int(factor * side / vision.size) for side in (height, width))
    if not rows:
        rows = 1
        columns = max(min(width // height, vision.rows), 1)
    elif not columns:
        rows = min(height // width, vision.rows)
        columns = 1
    return rows, columns


def _fitted(size: tuple[int, int], side: int, grid: PixelGrid) -> tuple[int, int]:
    """Returns lines and columns of squares, with pixels within the grid's, about as tall as wide.

    Raises:
        InputError: if it is long and narrow beyond what models have seen.
    """
    width, height = size
    if max(size) > _MOST_RATIO * min(size):
        raise InputError(
            f"a picture has {width} x {height} pixels: give one whose sides differ by a factor of "
            f"{_MOST_RATIO} at most"
        )
    lines = round(height / side)
    columns = round(width / side)
    square = side**2
    if lines * columns * square > grid.most:
        factor = math.sqrt(height * width / grid.most)
        lines = max(1, math.floor(height / factor / side))
        columns = max(1, math.floor(width / factor / side))
    elif lines * columns * square < grid.least:
        factor = math.sqrt(grid.least / (height * width))
        lines, columns = (math.ceil(each * factor / side) for each in (height, width))
    return lines, columns


def _scaled(size: tuple[int, int], vision: Vision) -> tuple[int, int]:
    """Returns height and width with the longer side of `Vision.longest`, the other one even."""
    width, height = size
    ratio = width / height
    longest = vision.longest
    if width >= height:
        width = longest
        height = int(longest / ratio)
        height += height % 2
    else:
        width = int(longest * ratio)
        height = longest
        width += width % 2
    return max(height, 1), max(width, 1)


def _cut_size(scaled: tuple[int, int], vision: Vision) -> tuple[int, int]:
    """Returns height and width in which a picture is cut, multiples of `Vision.size`."""
    height, width = scaled
    ratio = width / height
    if width >= height:
        width = _up(width, vision.size)
        height = _up(int(width / ratio), vision.size)
    else:
        height = _up(height, vision.size)
        width = _up(int(height * ratio), vision.size)
    return height, width


def _up(pixels: int, size: int) -> int:
    return math.ceil(pixels / size) * size
