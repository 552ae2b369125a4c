"""Recurrent layers in the native graph; `runtime/kernels` has their inputs, a file an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from edgespec.bundle import StateShape
from edgespec.export.graph_builder import NATIVE
from edgespec.models.layers.recurrent import ShortConvolution, StateSpace

if TYPE_CHECKING:
    from edgespec.export.native.layers import LayerGraph
    from edgespec.models.layers.elements import Convolution
    from edgespec.models.layers.recurrent import GatedDelta, Recurrent

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
    weight = _weight(native, layer.convolution)
    return native.graph.op("ShortConv", inner, weight, rows, *_ROWS, domain=NATIVE)


def _recurrence(native: LayerGraph, x: str, number: int, layer: GatedDelta | StateSpace) -> str:
    """Emits what has states, by the operator that is called like its class."""
    g = native.graph
    convolution = layer.convolution
    more = list[str]()
    inner = native.linear(x, *layer.linears[:-1])
    weight = [_weight(native, convolution)]
    if isinstance(layer, StateSpace):
        shift = g.constant(np.zeros(convolution.channels), np.float32)
        weight.append(shift if convolution.bias is None else native.vector(convolution.bias))
        more = [native.vector(layer.skip)]
    strips = -(-layer.value_size // _LANES)
    own = layer.key_heads * layer.key_size + layer.value_heads * (1 + strips * _LANES)
    state = layer.value_heads, strips, layer.key_size, _LANES
    held = StateShape(number, convolution.channels + own, convolution.size - 1, state)
    norm = layer.result_norm
    return g.op(
        type(layer).__name__,
        inner,
        *weight,
        _decays(native, layer.log_decay),
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
    )


def _decays(native: LayerGraph, name: str) -> str:
    """Declares the factors of steps in the exponents of decays, [heads]."""
    return native.graph.constant(-np.exp(native.read(name).reshape(-1)), np.float32)


def _weight(native: LayerGraph, layer: Convolution) -> str:
    """Declares a convolution's weights, [size, channels], that of the row itself last."""
    weight = native.read(layer.weight).reshape(layer.channels, layer.size)
    return native.graph.constant(np.ascontiguousarray(weight.T), np.float32)


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
