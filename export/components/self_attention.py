"""Attention of a layer: queries, keys and values of new rows, and what they see of the cache."""

from __future__ import annotations

import numpy as np

from edgespec.export.components.stage import FLOAT, HALF, StageBuilder
from edgespec.models import Attention, Norm


def lower_attention(stage: StageBuilder, x: str, index: int, layer: Attention) -> str:
    """Attend to the past as it stands and to the new rows: nothing copies the cache.

    Args:
        stage: gets the nodes; the new keys and values are added to `new_kv`.
        x: [S, hidden], normalized if the layer wants that.
        index: the number of the layer.
        layer: its description.

    Returns:
        [S, hidden], what the attention adds to the residual stream.
    """
    g, kv, hd = stage.graph, layer.kv_heads, layer.head_dim
    form = stage.form(layer)
    q, k, v = _heads(stage, x, layer)
    new_k, new_v = _stored(stage, k), _stored(stage, v)
    past_k, past_v = (_past(stage, index, part, layer) for part in ("key", "value"))

    q = g.op("Mul", q, g.constant(layer.scale, np.float32))
    q = g.op("Reshape", q, g.ints(kv, -1, hd))  # [KV, G * S, hd]: a group shares its keys
    mixed = form.mix(q, (past_k, past_v), (new_k, new_v), layer.mask)
    mixed = g.op("Reshape", mixed, g.ints(layer.heads, -1, hd))
    mixed = g.op("Transpose", mixed, perm=[1, 0, 2])
    mixed = g.op("Reshape", mixed, g.ints(-1, layer.heads * hd))
    return stage.linear(mixed, layer.o)


def _heads(stage: StageBuilder, x: str, layer: Attention) -> tuple[str, str, str]:
    """Queries [H, S, hd], keys and values [KV, S, hd], the first two after their norms and RoPE.

    One product makes them all. They part before heads come first: as parts of one buffer OpenVINO
    would keep them together until the end, with more scores beside them.
    """
    g, heads, kv, hd = stage.graph, layer.heads, layer.kv_heads, layer.head_dim
    x = stage.linear(x, layer.q, layer.k, layer.v)
    whole = layer.q_norm is not None and layer.q_norm.size != hd
    if whole:  # norms over all heads together come before there are heads
        q, k, v = g.multi_op("Split", x, g.ints(heads * hd, kv * hd, kv * hd), outputs=3, axis=1)
        q, k = stage.norm(q, layer.q_norm), stage.norm(k, layer.k_norm)
        q, k, v = (g.op("Reshape", part, g.ints(0, -1, hd)) for part in (q, k, v))
    else:
        x = g.op("Reshape", x, g.ints(-1, heads + 2 * kv, hd))
        q, k, v = g.multi_op("Split", x, g.ints(heads, kv, kv), outputs=3, axis=1)
    norms = (None, None) if whole else (layer.q_norm, layer.k_norm)
    q, k = (_turned(stage, part, norm, layer) for part, norm in zip((q, k), norms, strict=True))
    return q, k, g.op("Transpose", v, perm=[1, 0, 2])


def _turned(stage: StageBuilder, x: str, norm: Norm | None, layer: Attention) -> str:
    """[S, heads, hd], with its norm if it has one, after RoPE: [heads, S, hd].

    The host gives sin with its first half negated, so that a rotation is x * cos + swap(x) * sin,
    where swap exchanges the halves.
    """
    g = stage.graph
    x = g.op("Transpose", stage.norm(x, norm), perm=[1, 0, 2])
    if not layer.rope:
        return x
    cos, sin = stage.rotation(layer.rope, layer.head_dim)
    first, second = g.multi_op("Split", x, outputs=2, axis=-1, num_outputs=2)
    swapped = g.op("Concat", second, first, axis=-1)
    return g.op("Add", g.op("Mul", x, cos), g.op("Mul", swapped, sin))


def _stored(stage: StageBuilder, value: str) -> str:
    """Hand [KV, S, hd] out in the cache's precision; attend to what the cache will hold."""
    if stage.formats.kv_dtype == FLOAT:
        stage.new_kv.append(value)
        return value
    # Rounded to half precision by arithmetic (Veltkamp, 1968): OpenVINO drops a pair of casts.
    g = stage.graph
    scaled = g.op("Mul", value, g.constant(2**13 + 1, np.float32))
    rounded = g.op("Sub", scaled, g.op("Sub", scaled, value))
    # The smallest numbers of half precision are 2 ** -24 apart, as those around 0.75 are here.
    anchor = g.constant(0.75, np.float32)
    rounded = g.op("Sub", anchor, g.op("Sub", anchor, rounded))
    stage.new_kv.append(g.op("Cast", rounded, to=HALF))
    return rounded


def _past(stage: StageBuilder, index: int, part: str, layer: Attention) -> str:
    dtype = stage.formats.kv_dtype
    past = stage.input(f"past.{index}.{part}", dtype, layer.kv_heads, "C", layer.head_dim)
    return past if dtype == FLOAT else stage.graph.op("Cast", past, to=FLOAT)
