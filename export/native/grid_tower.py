"""Emits what makes rows of pictures of any size, see `edgespec.models.vision.grid`.

All follows from the pixels alone, whose lines and columns are multiples of those of a row.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from edgespec import bundle
from edgespec.export.native.graph import NativeGraphBuilder
from edgespec.export.native.layers import FLOAT
from edgespec.export.native.patch_windows import WindowedPatches
from edgespec.export.native.vit import emit_layer
from edgespec.models.vision.grid import GridTower, Merger


def emit_grid_tower(native: NativeGraphBuilder, tower: GridTower) -> None:
    """Emits the whole graph, from a picture to its rows."""
    g = native.graph
    pixels = g.input(bundle.PIXELS, FLOAT, [1, 3, "H", "W"])
    x = _embedded(native, tower, pixels)
    lines, columns = (g.op("Shape", x, start=axis, end=axis + 1) for axis in (1, 2))
    x = _in_squares(native, tower, x, lines)
    turns = _rotations(native, tower, lines, columns)
    seen, windows = tower.windows, None
    if seen is not None:
        windows = WindowedPatches(native, seen, tower.factor, lines, columns)
    further = list[str]()
    for number, layer in enumerate(tower.layers):
        within = None if seen is None or number in seen.whole else windows
        x = emit_layer(native, x, layer, tower.heads, turns, within)
        if number in tower.behind:
            deep = tower.deep[len(further)]
            further.append(_merged(native, native.norm(_joined(native, deep, x), deep.norm), deep))
    merger = tower.merger
    x = _joined(native, merger, native.norm(x, merger.norm))
    rows = [_merged(native, x, merger), *further]
    whole = g.op("Concat", *rows, axis=1) if further else rows[0]
    g.output(bundle.ROWS, whole, FLOAT, ["N", len(rows) * merger.down.out_features])


def _embedded(native: NativeGraphBuilder, tower: GridTower, pixels: str) -> str:
    """Emits rows of patches and their positions, [1, lines, columns, width]."""
    g = native.graph
    # A patch's pictures are all the same, so that the sum of their weights does for all.
    frames = (tower.width, 3, -1, tower.patch, tower.patch)
    weights = (native.read(name).reshape(frames).sum(axis=2) for name in tower.embeddings)
    weight = g.constant(np.sum(list(weights), axis=0), np.float32)
    bias = [] if tower.bias is None else [g.constant(native.read(tower.bias), np.float32)]
    x = g.op("Conv", pixels, weight, *bias, strides=[tower.patch] * 2)
    if (places := tower.places) is not None:
        learned = native.read(places.name).reshape(1, places.side, places.side, tower.width)
        added = g.op(
            "Resize",
            g.constant(learned.transpose(0, 3, 1, 2), np.float32),
            "",
            "",
            g.op("Shape", x),
            mode="linear",
            coordinate_transformation_mode="align_corners",
        )
        x = g.op("Add", x, added)
    return g.op("Transpose", x, perm=[0, 2, 3, 1])


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
    native: NativeGraphBuilder, tower: GridTower, lines: str, columns: str
) -> tuple[str, str]:
    """Emits cosines and sines of patches, [patches, head_dim / 2] each."""
    g = native.graph
    count = tower.width // tower.heads // 4
    exponents = np.arange(count, dtype=np.float32) / np.float32(count)
    inv_freq = g.constant(1 / np.power(np.float32(tower.theta), exponents), np.float32)
    shape = g.op("Concat", g.ints(1), lines, columns, g.ints(count), axis=0)
    angles = list[str]()
    zero, one = (g.constant(each, np.int64) for each in (0, 1))
    for length, ahead in ((lines, (1, -1, 1, 1)), (columns, (1, 1, -1, 1))):
        numbers = g.op("Range", zero, g.op("Squeeze", length), one)
        numbers = g.op("Reshape", g.op("Cast", numbers, to=TensorProto.FLOAT), g.ints(*ahead))
        angles.append(g.op("Expand", g.op("Mul", numbers, inv_freq), shape))
    both = _in_squares(native, tower, g.op("Concat", *angles, axis=3), lines)
    return g.op("Cos", both), g.op("Sin", both)


def _joined(native: NativeGraphBuilder, merger: Merger, x: str) -> str:
    """Emits patches that are a row side by side."""
    return native.graph.op("Reshape", x, native.graph.ints(-1, merger.up.in_features))


def _merged(native: NativeGraphBuilder, x: str, merger: Merger) -> str:
    inner = native.graph.op("Gelu", native.linear(x, merger.up))
    return native.linear(inner, merger.down)
