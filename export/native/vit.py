"""Emits layers of a ViT, whose patches all see each other, or those of their own window."""

from __future__ import annotations

from edgespec.export.graph_builder import CONTRIB
from edgespec.export.native.graph import NativeGraphBuilder
from edgespec.export.native.patch_windows import WindowedPatches
from edgespec.models import Linear
from edgespec.models.vision.tower import TowerLayer


def emit_layer(
    native: NativeGraphBuilder,
    x: str,
    layer: TowerLayer,
    heads: int,
    turns: tuple[str, str] | None = None,
    windows: WindowedPatches | None = None,
) -> str:
    """Emits a layer; returns the rows behind it.

    Args:
        native: receives the nodes.
        x: [patches, width].
        layer: the description.
        heads: number of heads.
        turns: cosines and sines by which queries and keys are rotated, [patches, head_dim / 2]
            each; None: they are not.
        windows: windows beyond which patches do not see; None: they see all.
    """
    g = native.graph
    qkv = native.linear(native.norm(x, layer.norm), *layer.qkv)
    parts = g.multi_op("Split", qkv, outputs=3, axis=1, num_outputs=3)
    if layer.heads_norms is not None:
        parts[:2] = map(native.norm, parts, layer.heads_norms)
    one = [g.op("Unsqueeze", each, g.ints(0)) for each in parts]
    if turns is not None:
        for which in (0, 1):  # queries and keys
            one[which] = g.op(
                "RotaryEmbedding", one[which], g.ints(0), *turns, domain=CONTRIB, num_heads=heads
            )
    if windows is None:
        found = g.op("MultiHeadAttention", *one, domain=CONTRIB, num_heads=heads)
        attended = g.op("Reshape", found, g.ints(-1, layer.o.in_features))
    else:
        inside = [windows.parted(each, layer.o.in_features) for each in one]
        found = g.op(
            "MultiHeadAttention", *inside, "", windows.mask, domain=CONTRIB, num_heads=heads
        )
        attended = windows.joined(found, layer.o.in_features)
    first, second = layer.factors or ("", "")
    x = _added(native, x, attended, layer.o, first)
    inner = _inner(native, native.norm(x, layer.mlp_norm), layer)
    return _added(native, x, inner, layer.down, second)


def _added(native: NativeGraphBuilder, x: str, read: str, matrix: Linear, factor: str) -> str:
    """Emits x with a product added, times the tensor of that name if there is one."""
    if not factor:
        return native.linear(read, matrix, residual=x)
    update = native.graph.op("Mul", native.linear(read, matrix), native.vector(factor))
    return native.graph.op("Add", x, update)


def _inner(native: NativeGraphBuilder, x: str, layer: TowerLayer) -> str:
    """Emits what the last matrix of an MLP reads."""
    if layer.gate is not None:
        return native.gated(native.linear(x, layer.gate, layer.up), "silu")
    return native.activated(native.linear(x, layer.up), layer.activation)
