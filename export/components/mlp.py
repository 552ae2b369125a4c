"""The gated MLP of a layer."""

from __future__ import annotations

import numpy as np

from edgespec.export.components.graph import GraphBuilder
from edgespec.export.components.stage import StageBuilder
from edgespec.models import Mlp
from edgespec.models.layers import Activation, ClampedSwiglu


def lower_mlp(stage: StageBuilder, x: str, layer: Mlp) -> str:
    """Emits an MLP; x is its normalized input, the result is its output, both [S, hidden]."""
    gate = stage.linear(x, layer.gate)
    return stage.linear(
        gated(stage.graph, gate, stage.linear(x, layer.up), layer.activation), layer.down
    )


def gated(graph: GraphBuilder, gate: str, up: str, activation: Activation) -> str:
    """Emits the product of the activated gate and up, all [S, intermediate]."""
    if isinstance(activation, ClampedSwiglu):
        return _clamped_swiglu(graph, gate, up, activation)
    if activation == "gelu_tanh":
        return graph.op("Mul", graph.op("Gelu", gate, approximate="tanh"), up)
    return graph.op("Mul", silu(graph, gate), up)


def silu(graph: GraphBuilder, x: str) -> str:
    """Emits x * sigmoid(x)."""
    return graph.op("Mul", x, graph.op("Sigmoid", x))


def _clamped_swiglu(graph: GraphBuilder, gate: str, up: str, activation: ClampedSwiglu) -> str:
    limit = graph.constant(activation.limit, np.float32)
    gate = graph.op("Min", gate, limit)
    up = graph.op("Clip", up, graph.constant(-activation.limit, np.float32), limit)
    steep = graph.op("Mul", gate, graph.constant(activation.alpha, np.float32))
    glu = graph.op("Mul", gate, graph.op("Sigmoid", steep))
    return graph.op("Mul", glu, graph.op("Add", up, graph.constant(1, np.float32)))
