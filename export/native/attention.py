"""Attention in the native graph.

A call holds rows of any number of sequences. Attention writes keys and values of the rows to free
slots of the pool itself, and a row sees its sequence's committed slots and its ancestors in the
call, see `runtime/kernels/tree_attention.cc`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from edgespec.bundle import SIGHT, PoolShape
from edgespec.bundle.sublayers import rope_inputs
from edgespec.export.graph_builder import NATIVE
from edgespec.models.layers.distances import distance_buckets
from edgespec.models.layers.elements import LayerNorm
from edgespec.models.layers.sublayers import LatentAttention

if TYPE_CHECKING:
    from edgespec.export.native.layers import LayerGraph
    from edgespec.models import Attention, Linear

_KV = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "int8": TensorProto.INT8}
_LANES = 16


def lower_attention(native: LayerGraph, x: str, number: int, layer: Attention) -> str:
    """Emits queries, keys and values of rows, and attention.

    Args:
        native: receives the nodes.
        x: [S, hidden], the layer's normalized input.
        number: number of the layer.
        layer: description of the sublayer.

    Returns:
        [S, in_features], what the layer's last matrix reads.
    """
    if isinstance(layer, LatentAttention):
        return _latent(native, x, number, layer)
    if layer.source is not None:
        number = layer.source
    keys = native.keys.setdefault(number, layer.k)
    qkv = native.linear(x, *layer.linears[:-1])
    if isinstance(layer.q_norm, LayerNorm):
        qkv = _normalized(native, qkv, layer)
        layer = replace(layer, q_norm=None, k_norm=None)
    if layer.growth:
        qkv = _grown(native, qkv, layer)
    found = _tree_attention(native, qkv, number, layer, _key_scale(native, layer, keys))
    return native.norm(found, layer.inner_norm)


def _normalized(native: LayerGraph, qkv: str, layer: Attention) -> str:
    """Emits queries, keys and values behind norms that subtract the mean of all heads."""
    g = native.graph
    sizes = g.ints(*(each.out_features for each in layer.linears[:-1]))
    q, k, v = g.multi_op("Split", qkv, sizes, outputs=3, axis=1)
    return g.op("Concat", native.norm(q, layer.q_norm), native.norm(k, layer.k_norm), v, axis=1)


def _grown(native: LayerGraph, qkv: str, layer: Attention) -> str:
    """Emits queries times what they grow by, beside keys and values."""
    assert layer.q_norm is None, "it would undo that"
    assert not layer.gated, "gates lie among the queries"
    g = native.graph
    asked, *others = (each.out_features for each in layer.linears[:-1])
    q, rest = g.multi_op("Split", qkv, g.ints(asked, sum(others)), outputs=2, axis=1)
    return g.op("Concat", g.op("Mul", q, _growth(native, layer)), rest, axis=1)


def _growth(native: LayerGraph, layer: Attention) -> str:
    """Declares what queries are multiplied by, [S, 1]."""
    name, _ = rope_inputs(layer.growth)
    if layer.growth not in native.ropes:
        native.ropes.append(layer.growth)
        native.graph.input(name, TensorProto.FLOAT, ["S", 1])
    return name


def _latent(native: LayerGraph, x: str, number: int, layer: LatentAttention) -> str:
    """Emits attention to latents, and what heads make of its results, [S, values of all]."""
    g = native.graph
    heads = layer.heads
    size = layer.latent_norm.size
    still = layer.keys[0].in_features
    turned = layer.rotated
    first = layer.q_in or layer.q
    assert layer.k is not None
    both = native.linear(x, first, layer.k)
    parts = g.ints(first.out_features, size, turned)
    q, latent, key = g.multi_op("Split", both, parts, outputs=3, axis=1)
    if layer.q_in is not None:
        q = native.linear(native.norm(q, layer.q_in_norm), layer.q)
    if layer.growth:
        q = g.op("Mul", q, _growth(native, layer))
    q = g.op("Reshape", q, g.ints(0, heads, still + turned))
    asked, turning = g.multi_op("Split", q, g.ints(still, turned), outputs=2, axis=2)
    asked = native.by_head(g.op("Reshape", asked, g.ints(0, heads * still)), layer.keys)
    asked = g.op("Concat", turning, g.op("Reshape", asked, g.ints(0, heads, size)), axis=2)
    asked = g.op("Reshape", asked, g.ints(0, heads * layer.head_dim))
    qkv = g.op("Concat", asked, key, native.norm(latent, layer.latent_norm), axis=1)
    found = _tree_attention(native, qkv, number, layer)
    found = g.op("Reshape", found, g.ints(0, heads, layer.head_dim))
    _, found = g.multi_op("Split", found, g.ints(turned, size), outputs=2, axis=2)
    return native.by_head(g.op("Reshape", found, g.ints(0, heads * size)), layer.values)


def _tree_attention(
    native: LayerGraph, qkv: str, number: int, layer: Attention, key_scale: str = ""
) -> str:
    """Emits attention of rows with these queries, keys and values, [S, heads * head_dim]."""
    cos, sin = _rotation(native, layer)
    pool, scales = _pool(native, number, layer)
    eps = {"q_eps": layer.q_norm, "k_eps": layer.k_norm, "v_eps": layer.v_norm}
    source = "other" if layer.source is not None else "keys" if layer.v is None else "own"
    return native.graph.op(
        "TreeAttention",
        qkv,
        cos,
        sin,
        pool,
        scales,
        "write",
        "parent",
        "sequence",
        "context",
        "starts",
        "" if layer.q_norm is None else native.norm_weight(layer.q_norm),
        "" if layer.k_norm is None else native.norm_weight(layer.k_norm),
        "" if layer.sinks is None else native.vector(layer.sinks),
        key_scale,
        _sight(native, layer),
        *_by_distance(native, layer),
        domain=NATIVE,
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        scale=float(layer.scale),
        soft_cap=float(layer.softcap or 0.0),
        window=layer.window or 0,
        gated=int(layer.gated),
        norm_after_rope=int(layer.norm_after_rope),
        source=source,
        **({"chunked": 1} if layer.chunked else {}),
        **{name: float(norm.eps) for name, norm in eps.items() if norm is not None},
    )


def _by_distance(native: LayerGraph, layer: Attention) -> list[str]:
    """Declares what is taken off or added to scores by distance, if anything is."""
    slopes = native.graph.constant(layer.slopes, np.float32) if layer.slopes else ""
    if layer.nearness is None:
        return [slopes] if slopes else []
    added = native.read(layer.nearness)[distance_buckets()]
    return [slopes, native.graph.constant(added.T, np.float32)]


def _sight(native: LayerGraph, layer: Attention) -> str:
    """Returns what lets rows see others than their ancestors; empty if nothing does."""
    if layer.behind == 0:
        return native.sight if layer.window or not native.sight_in_windows else ""
    if SIGHT not in native.graph.inputs:
        native.graph.input(SIGHT, TensorProto.INT32, ["S"])
    if layer.behind is None:
        return SIGHT
    return native.graph.op("Min", SIGHT, native.graph.constant(layer.behind, np.int32))


def _key_scale(native: LayerGraph, layer: Attention, keys: Linear | None) -> str:
    """Declares what keys are multiplied by in a cache of 8 bits, [kv_heads, head_dim].

    Biases of keys, as Qwen2 has, may be hundreds of times the rest of a key, of which little
    would be left with one scale a row. The factors are powers of two, which round nothing, and
    equal for the two numbers that RoPE turns into one another.
    """
    bias = None if keys is None else keys.bias
    if native.kv != "int8" or bias is None:
        return ""
    by_head = native.read(bias).reshape(layer.kv_heads, 2, -1)
    size = np.sqrt((by_head.astype(np.float32) ** 2).mean(axis=1))
    factors = 2.0 ** -np.floor(np.log2(np.maximum(size / 2, 1.0)))
    return native.graph.constant(np.concatenate([factors, factors], axis=1), np.float32)


def _rotation(native: LayerGraph, layer: Attention) -> tuple[str, str]:
    if not layer.rope:
        return "", ""
    names = rope_inputs(layer.rope)
    if layer.rope not in native.ropes:
        native.ropes.append(layer.rope)
        for name in names:
            native.graph.input(name, TensorProto.FLOAT, ["S", layer.rotated // 2])
    return names


def _pool(native: LayerGraph, number: int, layer: Attention) -> tuple[str, str]:
    """Declares what the keys and values of a layer of this number are kept in, once."""
    kind = native.kv
    names = f"pool.{number}", f"scales.{number}" if kind == "int8" else ""
    if all(each.layer != number for each in native.pools):
        dim = -(-layer.head_dim // _LANES) * _LANES
        native.pools.append(PoolShape(number, layer.kv_heads, dim, layer.window))
        native.graph.input(names[0], _KV[kind], [2, layer.kv_heads, "C", dim])
        if names[1]:
            native.graph.input(names[1], TensorProto.FLOAT, [2, layer.kv_heads, "C"])
    return names
