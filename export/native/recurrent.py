"""Recurrent layers in the native graph, see `runtime/kernels/gated_delta.cc` for their inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from edgespec.bundle import StateShape
from edgespec.export.graph_builder import NATIVE
from edgespec.models import GatedDelta, ShortConvolution
from edgespec.models.layers import Convolution

if TYPE_CHECKING:
    from edgespec.export.native.layers import LayerGraph

_LANES = 16
_ROWS = ("recent_write", "parent", "sequence", "recent", "recent_starts")


def lower_convolution(native: LayerGraph, x: str, number: int, layer: ShortConvolution) -> str:
    """Emits a gated short convolution.

    Args:
        native: receives the nodes.
        x: [S, hidden], the layer's normalized input.
        number: number of the layer.
        layer: description of the sublayer.

    Returns:
        [S, channels], what the layer's last matrix reads.
    """
    channels, size = layer.convolution.channels, layer.convolution.size
    rows, _ = _held(native, StateShape(number, channels, size - 1))
    inner, weight = native.linear(x, layer.inner), _weight(native, layer.convolution)
    return native.graph.op("ShortConv", inner, weight, rows, *_ROWS, domain=NATIVE)


def lower_delta(native: LayerGraph, x: str, number: int, layer: GatedDelta) -> str:
    """Emits the gated delta rule; parameters and result are those of `lower_convolution`."""
    heads, strips = layer.value_heads, -(-layer.value_size // _LANES)
    keys = layer.key_heads * layer.key_size
    width = layer.convolution.channels + keys + heads * (1 + strips * _LANES)
    state = heads, strips, layer.key_size, _LANES
    rows, states = _held(native, StateShape(number, width, layer.convolution.size - 1, state))
    log_decay = native.read(layer.log_decay).reshape(-1)
    return native.graph.op(
        "GatedDelta",
        native.linear(x, layer.mixed, layer.gate, layer.rate, layer.decay),
        _weight(native, layer.convolution),
        native.graph.constant(-np.exp(log_decay), np.float32),
        native.vector(layer.decay_bias),
        native.norm_weight(layer.result_norm),
        rows,
        states,
        *_ROWS,
        "carry",
        domain=NATIVE,
        key_heads=layer.key_heads,
        value_heads=heads,
        key_size=layer.key_size,
        value_size=layer.value_size,
        eps=float(layer.result_norm.eps),
    )


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
