"""Sizes in which a model reads a picture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgespec.errors import InputError

if TYPE_CHECKING:
    from edgespec.bundle import PictureTiles, PixelGrid, Vision

_MOST_RATIO = 200


def kept_size(size: tuple[int, int], vision: Vision) -> tuple[int, int]:
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


def fitted_size(
    size: tuple[int, int], side: int, grid: PixelGrid, least: int = 0
) -> tuple[int, int]:
    """Returns lines and columns of squares, with pixels within the grid's, about as tall as wide.

    Args:
        size: the picture's width and height.
        side: pixels of a side of a square.
        grid: how many pixels there may be.
        least: lines and columns at least before it is looked at how many pixels they have.

    Raises:
        InputError: if it is long and narrow beyond what models have seen.
    """
    width, height = size
    if max(size) > _MOST_RATIO * min(size):
        raise InputError(
            f"a picture has {width} x {height} pixels: give one whose sides differ by a factor of "
            f"{_MOST_RATIO} at most"
        )
    lines = max(round(height / side), least)
    columns = max(round(width / side), least)
    square = side**2
    if lines * columns * square > grid.most:
        factor = math.sqrt(height * width / grid.most)
        lines = max(1, math.floor(height / factor / side))
        columns = max(1, math.floor(width / factor / side))
    elif lines * columns * square < grid.least:
        factor = math.sqrt(grid.least / (height * width))
        lines, columns = (math.ceil(each * factor / side) for each in (height, width))
    return lines, columns


def scaled_size(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """Returns height and width with the longer side of this length, the other one even."""
    width, height = size
    ratio = width / height
    if width >= height:
        width = longest
        height = int(longest / ratio)
        height += height % 2
    else:
        width = int(longest * ratio)
        height = longest
        width += width % 2
    return max(height, 1), max(width, 1)


def cut_size(scaled: tuple[int, int], size: int) -> tuple[int, int]:
    """Returns height and width in which a picture is cut, multiples of a size."""
    height, width = scaled
    ratio = width / height
    if width >= height:
        width = _up(width, size)
        height = _up(int(width / ratio), size)
    else:
        height = _up(height, size)
        width = _up(int(height * ratio), size)
    return height, width


def _up(pixels: int, size: int) -> int:
    return math.ceil(pixels / size) * size


def tile_counts(size: tuple[int, int], vision: Vision, tiles: PictureTiles) -> tuple[int, int]:
    """Returns rows and columns of squares into which a picture is cut; both 1 if it is not.

    They are those whose proportions are nearest to the picture's; of such, the more, unless they
    have twice its pixels (Chen et al., InternVL 1.5, 2024).
    """
    width, height = size
    if vision.grid is not None and tiles.larger:
        lines, columns = (max(round(each / vision.size), 1) for each in (height, width))
        if lines * columns * vision.size**2 <= vision.grid.most * tiles.larger:
            return 1, 1
    best = 1, 1
    nearest = math.inf
    for rows, columns in _layouts(tiles.least, tiles.most):
        distance = abs(width / height - columns / rows)
        twice = width * height <= 0.5 * tiles.size**2 * rows * columns
        if distance < nearest or (distance == nearest and not twice):
            nearest = distance
            best = rows, columns
    return best


def _layouts(least: int, most: int) -> list[tuple[int, int]]:
    """Returns rows and columns of so many squares, the fewest first, and of these the tallest."""
    counts = range(1, most + 1)
    found = [(h, w) for w in counts for h in counts if least <= h * w <= most]
    return sorted(found, key=math.prod)
