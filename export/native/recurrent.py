"""Recurrent layers in the native graph; `runtime/kernels` has their inputs, a file an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from onnx import TensorProto

from edgespec.bundle import StateShape
from edgespec.export.graph_builder import NATIVE
from edgespec.models.layers import GatedDelta, StateSpace

if TYPE_CHECKING:
    from edgespec.export.native.layers import LayerGraph
    from edgespec.models.elements import Convolution
    from edgespec.models.layers import Recurrent

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
    if isinstance(layer, GatedDelta):
        return _delta(native, x, number, layer)
    if isinstance(layer, StateSpace):
        return _space(native, x, number, layer)
    channels, size = layer.convolution.channels, layer.convolution.size
    rows, _ = _held(native, StateShape(number, channels, size - 1))
    inner, weight = native.linear(x, layer.inner), _weight(native, layer.convolution)
    return native.graph.op("ShortConv", inner, weight, rows, *_ROWS, domain=NATIVE)


def _delta(native: LayerGraph, x: str, number: int, layer: GatedDelta) -> str:
    sizes = _Sizes(layer.key_heads, layer.value_heads, layer.key_size, layer.value_size)
    return native.graph.op(
        "GatedDelta",
        native.linear(x, layer.mixed, layer.gate, layer.rate, layer.decay),
        _weight(native, layer.convolution),
        _decays(native, layer.log_decay),
        native.vector(layer.decay_bias),
        native.norm_weight(layer.result_norm),
        *_held(native, sizes.shape(number, layer.convolution)),
        *_ROWS,
        "carry",
        domain=NATIVE,
        **sizes._asdict(),
        eps=float(layer.result_norm.eps),
    )


def _space(native: LayerGraph, x: str, number: int, layer: StateSpace) -> str:
    convolution = layer.convolution
    sizes = _Sizes(layer.groups, layer.heads, layer.state_size, layer.head_size)
    shift = native.graph.constant(np.zeros(convolution.channels), np.float32)
    return native.graph.op(
        "StateSpace",
        native.linear(x, layer.inner),
        _weight(native, convolution),
        shift if convolution.bias is None else native.vector(convolution.bias),
        _decays(native, layer.log_decay),
        native.vector(layer.step_bias),
        native.vector(layer.skip),
        native.norm_weight(layer.result_norm),
        *_held(native, sizes.shape(number, convolution)),
        *_ROWS,
        "carry",
        domain=NATIVE,
        **sizes._asdict(),
        eps=float(layer.result_norm.eps),
    )


class _Sizes(NamedTuple):
    """The attributes of an operator with states."""

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int

    def shape(self, number: int, convolution: Convolution) -> StateShape:
        """What a layer holds of sequences."""
        strips = -(-self.value_size // _LANES)
        own = self.key_heads * self.key_size + self.value_heads * (1 + strips * _LANES)
        state = self.value_heads, strips, self.key_size, _LANES
        return StateShape(number, convolution.channels + own, convolution.size - 1, state)


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
