"""Emits what makes rows of Gemma 4's pictures, see `edgespec.models.vision.gemma4`."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from edgespec import bundle
from edgespec.errors import CheckpointError
from edgespec.export.arrays import Floats
from edgespec.export.graph_builder import CONTRIB
from edgespec.export.native.graph import NativeGraphBuilder
from edgespec.export.native.layers import FLOAT
from edgespec.models import Linear
from edgespec.models.vision.gemma4 import ClippedLinear, PatchLayer, PatchTower
from edgespec.models.vision.gemma4_unified import PatchEmbedder


def emit_patches(native: NativeGraphBuilder, tower: PatchTower) -> None:
    """Emits all nodes of a tower."""
    g = native.graph
    width = tower.embedding.out_features
    pixels, places = _inputs(native, tower.embedding.in_features)
    x = native.linear(pixels, tower.embedding, exact=True)
    added = native.read(tower.positions)[:, : tower.rows * tower.side]  # no picture has more
    x = _placed(native, x, places, added)
    # [N, 1, 2, 1, frequencies]: by head, by its half, and by the half of this that is turned.
    angles = g.op("Cast", g.op("Unsqueeze", places, g.ints(1, 3, 4)), to=TensorProto.FLOAT)
    angles = g.op("Mul", angles, g.constant(tower.inv_freq, np.float32))
    turns = g.op("Cos", angles), g.op("Sin", angles)
    for layer in tower.layers:
        attended = _attended(native, native.norm(x, layer.norm), layer, tower, turns)
        x = g.op("Add", x, native.norm(_product(native, attended, layer.o), layer.post_norm))
        inner = native.norm(x, layer.mlp_norm)
        gate = g.op("Gelu", _product(native, inner, layer.gate), approximate="tanh")
        inner = g.op("Mul", gate, _product(native, inner, layer.up))
        inner = native.norm(_product(native, inner, layer.down), layer.mlp_post_norm)
        x = g.op("Add", x, inner)
    x = g.op("ReduceMean", g.op("Reshape", x, g.ints(-1, tower.side**2, width)), g.ints(1))
    x = g.op("Mul", g.op("Reshape", x, g.ints(-1, width)), g.constant(width**0.5, np.float32))
    if tower.standard is not None:
        mean, factor = map(native.vector, tower.standard)
        x = g.op("Mul", g.op("Sub", x, mean), factor)
    rows = native.linear(native.norm(x, tower.norm), tower.projection)
    g.output(bundle.ROWS, rows, FLOAT, ["R", tower.projection.out_features])


def emit_embedder(native: NativeGraphBuilder, tower: PatchEmbedder) -> None:
    """Emits all nodes of what Gemma 4 12B has instead of a tower."""
    g = native.graph
    pixels, places = _inputs(native, tower.dense.in_features)
    x = native.linear(native.norm(pixels, tower.pixels_norm), tower.dense)
    added = native.read(tower.positions)
    added = added if tower.by_axis else added.swapaxes(0, 1)
    added = added[:, : tower.rows]  # no picture has more
    x = _placed(native, native.norm(x, tower.dense_norm), places, added)
    x = native.norm(native.norm(x, tower.places_norm), tower.norm)
    rows = native.linear(x, tower.projection)
    g.output(bundle.ROWS, rows, FLOAT, ["N", tower.projection.out_features])


def _inputs(native: NativeGraphBuilder, values: int) -> tuple[str, str]:
    pixels = native.graph.input(bundle.PIXELS, FLOAT, ["N", values])
    return pixels, native.graph.input(bundle.PLACES, TensorProto.INT64, ["N", 2])


def _placed(native: NativeGraphBuilder, x: str, places: str, added: Floats) -> str:
    """Emits x with rows of two tables added, [2, places, width], by place."""
    g = native.graph
    for table, column in zip(
        added, g.multi_op("Split", places, outputs=2, axis=1, num_outputs=2), strict=True
    ):
        rows = g.op("Squeeze", column, g.ints(1))
        x = g.op("Add", x, g.op("Gather", g.constant(table, np.float32), rows, axis=0))
    return x


def _attended(
    native: NativeGraphBuilder, x: str, layer: PatchLayer, tower: PatchTower, turns: tuple[str, str]
) -> str:
    """Emits attention of all patches to all, [N, heads * head_dim]."""
    g = native.graph
    heads = tower.heads
    head = layer.q_norm.size
    whole = g.ints(1, -1, heads * head)
    read = []
    for linear, norm in ((layer.q, layer.q_norm), (layer.k, layer.k_norm), (layer.v, layer.v_norm)):
        y = g.op("Reshape", _product(native, x, linear), g.ints(-1, heads, head))
        y = native.norm(y, norm)
        if linear is not layer.v:
            y = g.op("Reshape", y, g.ints(-1, heads, 2, 2, head // 4))
            a, b = g.multi_op("Split", y, outputs=2, axis=3, num_outputs=2)
            cos, sin = turns
            left = g.op("Sub", g.op("Mul", a, cos), g.op("Mul", b, sin))
            right = g.op("Add", g.op("Mul", b, cos), g.op("Mul", a, sin))
            y = g.op("Concat", left, right, axis=3)
        read.append(g.op("Reshape", y, whole))
    found = g.op("MultiHeadAttention", *read, domain=CONTRIB, num_heads=heads, scale=1.0)
    return g.op("Reshape", found, g.ints(-1, heads * head))


def _product(native: NativeGraphBuilder, x: str, layer: Linear) -> str:
    """Emits a product, between the bounds that the checkpoint has."""
    if not isinstance(layer, ClippedLinear):
        return native.linear(x, layer)
    clipped = _clipped(native, x, layer.bounds("input"))
    return _clipped(native, native.linear(clipped, layer), layer.bounds("output"))


def _clipped(native: NativeGraphBuilder, x: str, bounds: tuple[str, str]) -> str:
    low, high = (float(native.tensors.read(name).item()) for name in bounds)
    if np.isnan(low) or np.isnan(high):
        raise CheckpointError(
            f"{native.tensors.place(bounds[0])}: {bounds[0]} or {bounds[1]} is NaN: download the "
            "checkpoint again"
        )
    if low == -np.inf and high == np.inf:
        return x
    g = native.graph
    return g.op("Clip", x, g.constant(low, np.float32), g.constant(high, np.float32))
