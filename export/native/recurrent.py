"""Recurrent layers in the native graph; `runtime/kernels` has their inputs, a file an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from edgespec.bundle import StateShape
from edgespec.export.graph_builder import NATIVE
from edgespec.models.layers.recurrent import GatedDelta, ShortConvolution, StateSpace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgespec.export.native.layers import LayerGraph
    from edgespec.models.layers.elements import Convolution
    from edgespec.models.layers.recurrent import Recurrent

_LANES = 16
_ROWS = ("recent_write", "parent", "sequence", "recent", "recent_starts")


def lower_recurrent(native: LayerGraph, x: str, number: int, layer: Recurrent) -> str:
    """Emits a recurrent layer.

    Args:
        native: receives the nodes.
        x: [S, hidden], the layer's normalized input.
        number: number of the layer.
        layer: description of the sublayer.

    Returns:
        [S, channels], what the layer's last matrix reads.
    """
    if not isinstance(layer, ShortConvolution):
        return _recurrence(native, x, number, layer)
    channels = layer.convolution.channels
    size = layer.convolution.size
    rows, _ = _held(native, StateShape(number, channels, size - 1))
    inner = native.linear(x, layer.inner)
    weight = _weight(native, [layer.convolution])
    return native.graph.op("ShortConv", inner, weight, rows, *_ROWS, domain=NATIVE)


def _recurrence(native: LayerGraph, x: str, number: int, layer: GatedDelta | StateSpace) -> str:
    """Emits what has states, by the operator that is called like its class."""
    weight = [_weight(native, layer.convolutions)]
    more = list[str]()
    own: dict[str, object] = {}
    if isinstance(layer, GatedDelta):
        inner = _delta_input(native, x, layer)
        own = {"decay_size": layer.decay_size, "activation": layer.activation}
    else:
        inner = native.linear(x, layer.inner)
        weight.append(_shift(native, layer.convolutions))
        more = [native.vector(layer.skip)]
    strips = -(-layer.value_size // _LANES)
    kept = layer.key_heads * layer.key_size
    kept += layer.value_heads * (layer.decay_size + strips * _LANES)
    state = layer.value_heads, strips, layer.key_size, _LANES
    before = layer.convolutions[0].size - 1
    held = StateShape(number, layer.channels + kept, before, state)
    norm = layer.result_norm
    return native.graph.op(
        type(layer).__name__,
        inner,
        *weight,
        _decays(native, layer),
        native.vector(layer.decay_bias),
        *more,
        "" if norm is None else native.norm_weight(norm),
        *_held(native, held),
        *_ROWS,
        "carry",
        domain=NATIVE,
        key_heads=layer.key_heads,
        value_heads=layer.value_heads,
        key_size=layer.key_size,
        value_size=layer.value_size,
        eps=0.0 if norm is None else float(norm.eps),
        **own,
    )


def _delta_input(native: LayerGraph, x: str, layer: GatedDelta) -> str:
    """Emits what `GatedDelta` reads: queries, keys and values, gates, rates and decays."""
    g = native.graph
    first = layer.gate_in or layer.gate, layer.rate, layer.decay_in or layer.decay
    both = native.linear(x, *layer.mixed, *first)
    if layer.gate_in is None and layer.decay_in is None:
        return both
    sizes = g.ints(layer.channels, *(each.out_features for each in first))
    mixed, gate, rate, decay = g.multi_op("Split", both, sizes, outputs=4, axis=1)
    gate = gate if layer.gate_in is None else native.linear(gate, layer.gate)
    decay = decay if layer.decay_in is None else native.linear(decay, layer.decay)
    return g.op("Concat", mixed, gate, rate, decay, axis=1)


def _decays(native: LayerGraph, layer: GatedDelta | StateSpace) -> str:
    """Declares the factors of steps in the exponents of decays, [heads * decay_size]."""
    factors = -np.exp(native.read(layer.log_decay).reshape(-1))
    return native.graph.constant(np.repeat(factors, layer.decay_size), np.float32)


def _weight(native: LayerGraph, layers: Sequence[Convolution]) -> str:
    """Declares weights of convolutions, [size, channels of all], that of the row itself last."""
    parts = [native.read(each.weight).reshape(each.channels, each.size) for each in layers]
    return native.graph.constant(np.ascontiguousarray(np.concatenate(parts).T), np.float32)


def _shift(native: LayerGraph, layers: Sequence[Convolution]) -> str:
    """Declares convolutions' biases side by side, [channels]."""
    parts = [
        np.zeros(each.channels, np.float32) if each.bias is None else native.read(each.bias)
        for each in layers
    ]
    return native.graph.constant(np.concatenate(parts), np.float32)


def _held(native: LayerGraph, shape: StateShape) -> tuple[str, str]:
    """Declares what a layer holds of sequences: rows, and states if it has them."""
    g = native.graph
    if not native.recurrent:
        for name, size in (("recent_write", "S"), ("recent", "Q"), ("recent_starts", "B")):
            g.input(name, TensorProto.INT32, [size])
    if shape.state and not any(each.state for each in native.recurrent):
        g.input("carry", TensorProto.INT32, ["sequences", 4])
    native.recurrent.append(shape)
    rows = g.input(f"rows.{shape.layer}", TensorProto.FLOAT, ["R", shape.width])
    if not shape.state:
        return rows, ""
    return rows, g.input(f"states.{shape.layer}", TensorProto.FLOAT, ["N", *shape.state])
