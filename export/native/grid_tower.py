"""Emits what makes rows of pictures of any size, see `edgespec.models.vision.grid`.

All follows from the pixels alone, whose lines and columns are multiples of those of a row.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from edgespec import bundle
from edgespec.export.arrays import Floats
from edgespec.export.native.graph import NativeGraphBuilder
from edgespec.export.native.layers import FLOAT
from edgespec.export.native.patch_windows import WindowedPatches
from edgespec.export.native.vit import emit_layer
from edgespec.models.vision.grid import GridTower, LearnedPlaces, Merger


def emit_grid_tower(native: NativeGraphBuilder, tower: GridTower) -> None:
    """Emits the whole graph, from a picture to its rows."""
    g = native.graph
    pixels = g.input(bundle.PIXELS, FLOAT, [1, 3, "H", "W"])
    x = _embedded(native, tower, pixels)
    lines, columns = (g.op("Shape", x, start=axis, end=axis + 1) for axis in (1, 2))
    x = _in_squares(native, tower, x, lines)
    if tower.opening is not None:
        x = g.op("Concat", _opening(native, tower, tower.opening[0]), x, axis=0)
    turns = None if tower.theta is None else _rotations(native, tower, tower.theta, lines, columns)
    seen, windows = tower.windows, None
    if seen is not None:
        windows = WindowedPatches(native, seen, tower.factor, lines, columns)
    further = list[str]()
    for number, layer in enumerate(tower.layers):
        within = None if seen is None or number in seen.whole else windows
        x = emit_layer(native, x, layer, tower.heads, turns, within)
        if number in tower.behind:
            deep = tower.deep[len(further)]
            further.append(_merged(native, x, deep))
    x = native.norm(x, tower.norm)
    if tower.opening is not None:
        x = g.op("Slice", x, g.ints(1), g.ints(np.iinfo(np.int64).max), g.ints(0))
    merger = tower.merger
    rows = [_merged(native, x, merger), *further]
    whole = g.op("Concat", *rows, axis=1) if further else rows[0]
    g.output(bundle.ROWS, whole, FLOAT, ["N", len(rows) * merger.down.out_features])


def _embedded(native: NativeGraphBuilder, tower: GridTower, pixels: str) -> str:
    """Emits rows of patches and their positions, [1, lines, columns, width]."""
    g = native.graph
    # A patch's pictures are all the same, so that the sum of their weights does for all.
    weights = [_kernel(native.read(name), tower) for name in tower.embeddings]
    weight = g.constant(np.sum(weights, axis=0), np.float32)
    bias = [] if tower.bias is None else [g.constant(native.read(tower.bias), np.float32)]
    x = g.op("Conv", pixels, weight, *bias, strides=[tower.patch] * 2)
    if (places := tower.places) is not None:
        learned = _learned(native, tower, places)[0 if tower.opening is None else 1 :]
        learned = learned.reshape(1, places.side, places.side, tower.width).transpose(0, 3, 1, 2)
        added = g.constant(learned, np.float32)
        if tower.grid is not None:
            added = g.op(
                "Resize",
                added,
                "",
                "",
                g.op("Shape", x),
                mode="linear",
                coordinate_transformation_mode="align_corners" if places.corners else "half_pixel",
                antialias=int(not places.corners),
            )
        x = g.op("Add", x, added)
    return g.op("Transpose", x, perm=[0, 2, 3, 1])


def _kernel(weight: Floats, tower: GridTower) -> Floats:
    """Returns what makes rows of patches, [width, colours, patch, patch]."""
    side = tower.patch
    if weight.ndim == 2:  # of patches whose colours lie together
        return weight.reshape(tower.width, side, side, 3).transpose(0, 3, 1, 2)
    whole: Floats = weight.reshape(tower.width, 3, -1, side, side).sum(axis=2)
    return whole


def _in_squares(native: NativeGraphBuilder, tower: GridTower, x: str, lines: str) -> str:
    """Emits [1, lines, columns, size] of patches as [patches, size], a square behind the other."""
    g = native.graph
    factor = tower.factor
    size = g.op("Shape", x, start=3)
    halves = g.op("Div", lines, g.ints(factor))
    shape = g.op("Concat", halves, g.ints(factor, -1, factor), size, axis=0)
    squares = g.op("Transpose", g.op("Reshape", x, shape), perm=[0, 2, 1, 3, 4])
    return g.op("Reshape", squares, g.op("Concat", g.ints(-1), size, axis=0))


def _rotations(
    native: NativeGraphBuilder, tower: GridTower, theta: float, lines: str, columns: str
) -> tuple[str, str]:
    """Emits cosines and sines of patches, [patches, head_dim / 2] each."""
    g = native.graph
    count = tower.width // tower.heads // 4
    exponents = np.arange(count, dtype=np.float32) / np.float32(count)
    inv_freq = g.constant(1 / np.power(np.float32(theta), exponents), np.float32)
    shape = g.op("Concat", g.ints(1), lines, columns, g.ints(count), axis=0)
    angles = list[str]()
    zero, one = (g.constant(each, np.int64) for each in (0, 1))
    for length, ahead in ((lines, (1, -1, 1, 1)), (columns, (1, 1, -1, 1))):
        numbers = g.op("Range", zero, g.op("Squeeze", length), one)
        numbers = g.op("Reshape", g.op("Cast", numbers, to=TensorProto.FLOAT), g.ints(*ahead))
        angles.append(g.op("Expand", g.op("Mul", numbers, inv_freq), shape))
    both = _in_squares(native, tower, g.op("Concat", *angles, axis=3), lines)
    return g.op("Cos", both), g.op("Sin", both)


def _merged(native: NativeGraphBuilder, x: str, merger: Merger) -> str:
    """Emits rows of patches, whose norm may be of each or of those that are a row side by side."""
    g = native.graph
    size = merger.up.in_features
    norm = merger.norm
    if norm is not None and norm.size < size:
        x = native.norm(x, norm)
    x = g.op("Reshape", x, g.ints(-1, size))
    if norm is not None and norm.size == size:
        x = native.norm(x, norm)
    return native.linear(g.op("Gelu", native.linear(x, merger.up)), merger.down)


def _opening(native: NativeGraphBuilder, tower: GridTower, name: str) -> str:
    """Emits the row before those of patches, with what is added for its place."""
    row = native.read(name).reshape(1, tower.width)
    if tower.places is not None:
        row = row + _learned(native, tower, tower.places)[:1]
    return native.graph.constant(row, np.float32)


def _learned(native: NativeGraphBuilder, tower: GridTower, places: LearnedPlaces) -> Floats:
    """Returns what is added by place, [places, width]."""
    return native.read(places.name).reshape(-1, tower.width)
