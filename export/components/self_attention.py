"""The attention of a layer: projections, norms, RoPE, and attention to cache and new rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgespec.bundle.caches import KEY_VALUE, SCALES, CacheGroup, past_input, rows_symbol
from edgespec.export.components.attention import Kept, KeysValues, Known
from edgespec.export.components.stage import DTYPES, FLOAT, HALF, INT8, StageBuilder
from edgespec.export.formats.matrices import vector
from edgespec.models import Attention, Norm

_LARGEST = 127  # of a number in 8 bits
_LEAST_SCALE = 1e-30


def lower_attention(stage: StageBuilder, x: str, index: int, layer: Attention) -> str:
    """Emits attention to the cache and to the new rows, without copying the cache.

    Args:
        stage: receives the nodes, and keeps the new keys and values for `emit_new_kv`.
        x: [S, hidden], the layer's input after its norm, if it has one.
        index: number of the layer.
        layer: description of the attention.

    Returns:
        [S, hidden], what the attention adds to the residual stream.
    """
    g, texts, kv, hd = stage.graph, stage.texts, layer.kv_heads, layer.head_dim
    (q, *own), gate = _heads(stage, x, layer)
    if layer.source is None:
        keys, values = own
        factors = _even(stage, layer)
        if factors is not None:
            keys = g.op("Mul", keys, g.constant(1 / factors, np.float32))
        keep_keys_values(stage, index, layer, keys, values)
    known = stage.keys_values[index if layer.source is None else layer.source]

    q = g.op("Mul", q, g.constant(layer.scale / (layer.softcap or 1.0), np.float32))
    q = g.op("Reshape", q, texts.shape(kv, -1, hd))  # [KV, G * L, hd]: a group shares its keys
    factors = _even(stage, known.layer)
    if factors is not None:
        q = g.op("Mul", q, g.constant(factors, np.float32))
    sinks = _sinks(stage, known.new[0].numbers, layer)
    mixed = stage.form.mix(q, known.past, known.new, layer, sinks)
    mixed = g.op("Reshape", mixed, texts.shape(layer.heads, -1, hd))
    mixed = texts.join(texts.turned(mixed), layer.heads * hd)
    if gate:
        mixed = g.op("Mul", mixed, g.op("Sigmoid", gate))
    return stage.linear(mixed, layer.o)


def keep_keys_values(
    stage: StageBuilder, index: int, layer: Attention, keys: str, values: str
) -> None:
    """Adds new keys and values [KV, S, hd] to `new_kv` and, beside the past, to `keys_values`."""
    new = _stored(stage, keys, layer), _stored(stage, values, layer)
    stage.keys_values[index] = Known(_past(stage, index, layer), new, layer)


def _heads(stage: StageBuilder, x: str, layer: Attention) -> tuple[tuple[str, ...], str]:
    """Emits queries [H, S, hd], and keys and values [KV, S, hd]; norms and RoPE are applied.

    Keys and values are left out if another layer has them. Beside them it returns the gate
    [S, H * hd], empty if the attention has none.

    One product computes them all. They are split before the transposition: OpenVINO would keep
    parts of one transposed buffer until the end of the layer, which needs more memory.
    """
    g, texts, heads, kv, hd = stage.graph, stage.texts, layer.heads, layer.kv_heads, layer.head_dim
    x = texts.part(stage.linear(x, *layer.linears[:-1]))
    whole, gate = layer.q_norm is not None and layer.q_norm.size != hd, ""
    if layer.source is not None:
        q = g.op("Reshape", x, texts.shape(-1, heads, hd))
        return (_turned(stage, q, layer.q_norm, layer),), gate
    if layer.gated:
        both, k, v = g.multi_op(
            "Split", x, g.ints(2 * heads * hd, kv * hd, kv * hd), outputs=3, axis=-1
        )
        both = g.op("Reshape", both, texts.shape(0, heads, 2 * hd))
        q, gate = g.multi_op("Split", both, outputs=2, axis=-1, num_outputs=2)
        gate = texts.join(gate, heads * hd)
        k, v = (g.op("Reshape", part, texts.shape(0, kv, hd)) for part in (k, v))
    elif whole:  # norms over all heads together come before the split into heads
        q, k, v = g.multi_op("Split", x, g.ints(heads * hd, kv * hd, kv * hd), outputs=3, axis=-1)
        q, k = stage.norm(q, layer.q_norm), stage.norm(k, layer.k_norm)
        q, k, v = (g.op("Reshape", part, texts.shape(0, -1, hd)) for part in (q, k, v))
    elif layer.v is None:
        x = g.op("Reshape", x, texts.shape(-1, heads + kv, hd))
        q, k = g.multi_op("Split", x, g.ints(heads, kv), outputs=2, axis=-2)
        v = k
    else:
        x = g.op("Reshape", x, texts.shape(-1, heads + 2 * kv, hd))
        q, k, v = g.multi_op("Split", x, g.ints(heads, kv, kv), outputs=3, axis=-2)
    v = stage.norm(v, layer.v_norm)
    norms = (None, None) if whole else (layer.q_norm, layer.k_norm)
    q, k = (_turned(stage, part, norm, layer) for part, norm in zip((q, k), norms, strict=True))
    return (q, k, texts.turned(v)), gate


def _turned(stage: StageBuilder, x: str, norm: Norm | None, layer: Attention) -> str:
    """Applies a norm (if there is one) and RoPE to [S, heads, hd]; returns [heads, S, hd]."""
    if layer.norm_after_rope:
        return stage.norm(_rotated(stage, x, layer), norm)
    return _rotated(stage, stage.norm(x, norm), layer)


def _rotated(stage: StageBuilder, x: str, layer: Attention) -> str:
    """Applies RoPE, if there is any, to [S, heads, hd]; returns [heads, S, hd].

    The caller passes sin with its first half negated, so that a rotation is
    x * cos + swap(x) * sin, where swap exchanges the halves.
    """
    g = stage.graph
    x = stage.texts.turned(x)
    if not layer.rope:
        return x
    cos, sin = stage.rotation(layer.rope, layer.head_dim)
    first, second = g.multi_op("Split", x, outputs=2, axis=-1, num_outputs=2)
    swapped = g.op("Concat", second, first, axis=-1)
    return g.op("Add", g.op("Mul", x, cos), g.op("Mul", swapped, sin))


def _sinks(stage: StageBuilder, keys: str, layer: Attention) -> str | None:
    """Emits the scores of sinks for all rows, [KV, G * S, 1]; None if the layer has none."""
    if layer.sinks is None:
        return None
    g, kv = stage.graph, layer.kv_heads
    by_head = g.op("Reshape", vector(g, stage.weights, layer.sinks), g.ints(kv, -1, 1))
    shape = g.op(
        "Concat", g.ints(kv, layer.heads // kv), g.op("Shape", keys, start=-2, end=-1), axis=0
    )
    for_rows = g.op("Reshape", g.op("Expand", by_head, shape), g.ints(kv, -1, 1))
    if not stage.texts.dims:
        return for_rows
    shape = g.op("Concat", g.op("Shape", keys, start=0, end=1), g.ints(1, 1, 1), axis=0)
    return g.op("Expand", for_rows, shape)


def _stored(stage: StageBuilder, value: str, layer: Attention) -> Kept:
    """Keeps new keys or values [KV, S, hd], and returns them as the cache will hold them."""
    g, dtype = stage.graph, stage.formats.kv_dtype
    new_kv = stage.new_kv[_group(stage, layer)]
    if dtype == FLOAT:
        new_kv.append(value)
        return Kept(value, None)
    if dtype == INT8:
        largest = g.op("ReduceMax", g.op("Abs", value), g.ints(-1), keepdims=1)
        scale = g.op("Mul", largest, g.constant(1 / _LARGEST, np.float32))
        scale = g.op("Max", scale, g.constant(_LEAST_SCALE, np.float32))  # of rows of zeros
        # Not a cast and back, which OpenVINO would drop.
        whole = g.op("Round", g.op("Div", value, scale))
        new_kv.append(g.op("Cast", whole, to=INT8))
        stage.new_kv[_group(stage, layer, scales=True)].append(scale)
        return Kept(whole, scale)
    # Rounds to half precision by arithmetic (Veltkamp, 1968): OpenVINO would drop a pair of casts.
    scaled = g.op("Mul", value, g.constant(2**13 + 1, np.float32))
    rounded = g.op("Sub", scaled, g.op("Sub", scaled, value))
    # Half precision's smallest numbers are 2 ** -24 apart, like float32 numbers around 0.75.
    anchor = g.constant(0.75, np.float32)
    rounded = g.op("Sub", anchor, g.op("Sub", anchor, rounded))
    new_kv.append(g.op("Cast", rounded, to=HALF))
    return Kept(rounded, None)


def _past(stage: StageBuilder, index: int, layer: Attention) -> KeysValues:
    """Declares a layer's inputs of the cache."""
    kv, dtype, rows = layer.kv_heads, stage.formats.kv_dtype, rows_symbol(layer.window)
    t = stage.texts.dims
    numbers = [
        stage.input(past_input(index, part), dtype, *t, kv, rows, layer.head_dim)
        for part in KEY_VALUE
    ]
    if dtype != FLOAT:
        numbers = [stage.graph.op("Cast", each, to=FLOAT) for each in numbers]
    if dtype != INT8:
        return Kept(numbers[0], None), Kept(numbers[1], None)
    scales = [stage.input(past_input(index, part), FLOAT, *t, kv, rows, 1) for part in SCALES]
    return Kept(numbers[0], scales[0]), Kept(numbers[1], scales[1])


def _group(stage: StageBuilder, layer: Attention, scales: bool = False) -> CacheGroup:
    """Returns the group that a layer's keys and values, or their scales, belong to."""
    if scales:
        return CacheGroup((), layer.kv_heads, 1, layer.window, "float32", scales=True)
    dtype = DTYPES[stage.formats.kv_dtype]
    return CacheGroup((), layer.kv_heads, layer.head_dim, layer.window, dtype)


def _even(stage: StageBuilder, layer: Attention) -> npt.NDArray[np.float32] | None:
    """Returns factors that make a key's numbers alike in size, [KV, 1, hd]; None: they are.

    Biases of keys, as Qwen2 has, may be hundreds of times the rest of a key. In 8 bits with one
    scale a row, little would be left of its other numbers. Keys are stored divided by the factors,
    and queries multiplied: powers of two, which round nothing, and equal for the two numbers that
    RoPE turns into one another. Large numbers stay twice to four times as large as the bulk, whose
    own largest are that, so that they lose no digits either.
    """
    if stage.formats.kv_dtype != INT8 or layer.k is None or layer.k.bias is None:
        return None
    bias = stage.weights.tensors.read(layer.k.bias).astype(np.float32)
    by_head = bias.reshape(layer.kv_heads, 2, -1)
    size = np.sqrt((by_head**2).mean(axis=1))
    factors = 2.0 ** np.floor(np.log2(np.maximum(size / 2, 1.0)))
    return np.concatenate([factors, factors], axis=1)[:, None].astype(np.float32)
