"""Emits what makes rows of pictures as a graph of its own, see `edgespec.models.vision.tower`.

That of Gemma 4 is in `export/native/patches.py`.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgespec import bundle
from edgespec.export.formats.tile_formats import BLOCK
from edgespec.export.graph_builder import DataFile
from edgespec.export.native.graph import NativeGraphBuilder
from edgespec.export.native.grid_tower import emit_grid_tower
from edgespec.export.native.layers import FLOAT
from edgespec.export.native.patches import emit_embedder, emit_patches
from edgespec.export.native.vit import emit_layer
from edgespec.export.native.weights import TileWeights
from edgespec.export.storage import FLOATS, Storage, kept_formats
from edgespec.models.vision.gemma4 import InProportion, PatchTower
from edgespec.models.vision.gemma4_unified import PatchEmbedder
from edgespec.models.vision.grid import GridTower
from edgespec.models.vision.reading import AnyTower
from edgespec.models.vision.tower import Tower

_NAME = "vision"
_MOST_KEPT = 8
_FEWEST_BITS = "int8"  # fewer would show in what a model sees, and save little


def write_tower(folder: Path, tower: AnyTower, precision: str) -> bundle.Vision:
    """Writes a tower's graph and weights; returns its record.

    Args:
        folder: folder of the bundle.
        tower: the tower.
        precision: that of most of the target's matrices; those of the tower have 8 bits at least.

    Raises:
        CheckpointError: if a number is not finite.
        ExportError: if a number is beyond half precision and is to be stored in it.
    """
    asked = precision if precision in FLOATS else _FEWEST_BITS
    kept = _kept(tower) if isinstance(tower, Tower) and precision not in FLOATS else {}
    storage = Storage(bundle.Precision(asked, asked, "fp32", BLOCK), frozenset(), kept)
    with closing(DataFile(folder / f"{_NAME}.tiles")) as data:
        native = NativeGraphBuilder(TileWeights(data, tower.source, storage, lambda _: None), _NAME)
        if isinstance(tower, GridTower):
            emit_grid_tower(native, tower)
        elif isinstance(tower, PatchTower):
            emit_patches(native, tower)
        elif isinstance(tower, PatchEmbedder):
            emit_embedder(native, tower)
        else:
            _emit(native, tower)
        written = native.save(folder)
    whole = isinstance(tower, InProportion)
    return bundle.Vision(
        graph=written.graph,
        data=written.data,
        token=tower.token,
        rows=tower.rows,
        around=tower.around,
        grid=tower.grid,
        patch=tower.patch if whole else 0,
        causal=whole and not tower.together,
        tiles=tower.tiles if isinstance(tower, GridTower) else None,
        **vars(tower.pixels),
    )


def _kept(tower: Tower) -> dict[str, str]:
    """Returns the formats of matrices that keep the numbers of a GGUF file.

    What is multiplied as one matrix keeps them if all of it has one format.
    """
    found = dict[str, str]()
    others = (each for layer in tower.layers for each in (layer.o, layer.up, layer.down))
    alone = [(each,) for each in (*others, tower.projection)]
    for stack in [layer.qkv for layer in tower.layers] + alone:
        names = [each.weight for each in stack]
        formats = kept_formats(tower.source, names, _MOST_KEPT, as_stored=True)
        if len(formats) == len(names) and len(set(formats.values())) == 1:
            found |= formats
    return found


def _emit(native: NativeGraphBuilder, tower: Tower) -> None:
    g = native.graph
    size = tower.pixels.size
    side = tower.side
    factor = tower.factor
    width = tower.width
    pixels = g.input(bundle.PIXELS, FLOAT, [1, 3, size, size])
    weight = g.constant(native.read(f"{tower.embedding}.weight"), np.float32)
    bias = g.constant(native.read(f"{tower.embedding}.bias"), np.float32)
    x = g.op("Conv", pixels, weight, bias, strides=[tower.patch] * 2)
    x = g.op("Transpose", g.op("Reshape", x, g.ints(width, side**2)), perm=[1, 0])
    places = native.read(tower.positions)
    if tower.mean_norm is None:
        places = places[_places(side)]
    x = g.op("Add", x, g.constant(places, np.float32))
    for layer in tower.layers:
        x = emit_layer(native, x, layer, tower.heads)
    x = native.norm(x, tower.norm)
    few = side // factor
    if tower.mean_norm is not None:
        x = g.op("Reshape", x, g.ints(few, factor, few, factor, width))
        x = g.op("Reshape", g.op("ReduceMean", x, g.ints(1, 3)), g.ints(few**2, width))
        weight = g.constant(native.read(tower.projection.weight), np.float32)
        rows = g.op("MatMul", native.norm(x, tower.mean_norm), weight)
        g.output(bundle.ROWS, rows, FLOAT, [tower.rows, tower.projection.out_features])
        return
    x = g.op("Reshape", x, g.ints(few, factor, few, factor * width))
    x = g.op("Reshape", g.op("Transpose", x, perm=[0, 2, 1, 3]), g.ints(few**2, factor**2 * width))
    rows = native.linear(x, tower.projection)
    g.output(bundle.ROWS, rows, FLOAT, [tower.rows, tower.projection.out_features])


def _places(side: int) -> npt.NDArray[np.int64]:
    """Returns the position of each patch, as transformers finds it: by fractions of a side.

    These are rounded, so that for some sides two patches have one position.
    """
    borders = np.arange(1 / side, 1.0, 1 / side).astype(np.float32)
    fractions = np.arange(side, dtype=np.float32) * (np.float32(1) / np.float32(side))
    found = np.searchsorted(borders, np.minimum(fractions, np.float32(1 - 1e-6)), side="right")
    places: npt.NDArray[np.int64] = (found[:, None] * side + found).reshape(-1)
    return places
