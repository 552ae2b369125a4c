"""The pieces of a picture that a model reads.

With Idefics3 and SmolVLM a picture is scaled to a length and cut into squares, and all of it is the
last square; with Gemma 3 that is the only one. With Qwen3-VL it is whole, and keeps about its size,
and with Gemma 4 its proportions. With InternVL and LFM2-VL it is cut into squares by these, and
the whole picture follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgespec.bundle import PIXELS, PLACES
from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.vision.sizes import (
    cut_size,
    fitted_size,
    kept_size,
    scaled_size,
    tile_counts,
)

if TYPE_CHECKING:
    from PIL.Image import Image

    from edgespec.bundle import PictureTiles, Vision

_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture as a model sees it.

    Attributes:
        grid: Rows and columns of the pieces into which it is cut; both 0 if there are none. With
            `Vision.grid` or `Vision.patch`, without tiles, lines and columns of its rows.
        pieces: these and behind them the whole picture, [height, width, 3] uint8 each.
    """

    grid: tuple[int, int]
    pieces: tuple[npt.NDArray[np.uint8], ...]


def rows_of(picture: Picture, vision: Vision) -> int:
    """Returns how many rows the target reads of a picture."""
    return sum(piece_rows(piece, vision) for piece in picture.pieces)


def piece_rows(piece: npt.NDArray[np.uint8], vision: Vision) -> int:
    """Returns how many rows the target reads of a piece."""
    if vision.grid is None and not vision.patch:
        return vision.rows
    height, width, _ = piece.shape
    return int(height // vision.size) * int(width // vision.size)


def cut_picture(picture: Image, vision: Vision) -> Picture:
    """Scales a picture and cuts it into pieces."""
    from PIL.Image import Resampling

    how = Resampling(vision.resample)
    size = vision.size
    if vision.tiles is not None:
        return _tiled(picture, vision, vision.tiles)
    if vision.grid is not None or vision.patch:
        if vision.grid is None:
            lines, columns = kept_size(picture.size, vision)
        else:
            lines, columns = fitted_size(picture.size, size, vision.grid)
        whole = picture.resize((columns * size, lines * size), how)
        return Picture((lines, columns), (np.asarray(whole),))
    if not vision.longest:
        return Picture((0, 0), (np.asarray(picture.resize((size, size), how)),))
    height, width = scaled = scaled_size(picture.size, vision.longest)
    whole = picture.resize((width, height), how)
    parts = []
    if vision.split:
        height, width = cut_size(scaled, size)
        whole = whole.resize((width, height), how)
        if (height, width) != (size, size):
            parts = _squares(whole, size)
    if whole.size != (size, size):
        whole = whole.resize((size, size), how)
    grid = (height // size, width // size) if parts else (0, 0)
    return Picture(grid, tuple(np.asarray(each) for each in (*parts, whole)))


def _tiled(picture: Image, vision: Vision, tiles: PictureTiles) -> Picture:
    """Cuts a picture into squares by its proportions, if it is large; all of it comes last."""
    from PIL.Image import Resampling

    how = Resampling(vision.resample)
    size = tiles.size
    rows, columns = tile_counts(picture.size, vision, tiles)
    parts = []
    if rows * columns > 1:
        parts = _squares(picture.resize((columns * size, rows * size), how), size)
    lines, across = 1, 1
    if vision.grid is not None:
        lines, across = fitted_size(picture.size, vision.size, vision.grid, 1)
    whole = picture.resize((across * vision.size, lines * vision.size), how)
    grid = (rows, columns) if parts else (0, 0)
    return Picture(grid, tuple(np.asarray(each) for each in (*parts, whole)))


def _squares(picture: Image, size: int) -> list[Image]:
    """Cuts a picture into squares, line by line."""
    width, height = picture.size
    return [
        picture.crop((left, top, left + size, top + size))
        for top in range(0, height, size)
        for left in range(0, width, size)
    ]


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


def picture_text(picture: Picture, vision: Vision, texts: Callable[[int], str]) -> str:
    """Returns what stands in a prompt for a picture.

    Args:
        picture: the picture.
        vision: how the model sees.
        texts: returns the texts of tokens.
    """
    row = texts(vision.token)
    if vision.tiles is not None:
        return _tiled_text(picture, vision, vision.tiles, row)
    rows, columns = picture.grid
    if vision.grid is not None:
        return row * (rows * columns)
    text = ""
    seen = row * (rows * columns if vision.patch else vision.rows)
    if vision.around is not None:
        before, behind = map(texts, vision.around)
        if vision.patch:
            return f"{before}{seen}{behind}"
        return f"\n\n{before}{seen}{behind}\n\n"
    for number in range(1, rows + 1):
        of_row = (f"{_AROUND}<row_{number}_col_{each}>{seen}" for each in range(1, columns + 1))
        text += "".join(of_row) + "\n"
    return f"{text}{chr(10) * bool(rows)}{_AROUND}{_WHOLE}{seen}{_AROUND}"


def _tiled_text(picture: Picture, vision: Vision, tiles: PictureTiles, row: str) -> str:
    """Returns the same of a picture that may be cut into squares."""
    *squares, whole = picture.pieces
    _, columns = picture.grid
    text = tiles.before
    for number, piece in enumerate(squares):
        line, column = divmod(number, columns)
        mark = tiles.square.replace("{row}", str(line + 1)).replace("{column}", str(column + 1))
        text += mark + row * piece_rows(piece, vision)
    text += (tiles.whole if squares else "") + row * piece_rows(whole, vision)
    return text + tiles.behind
