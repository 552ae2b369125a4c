"""The gated MLP of a layer."""

from __future__ import annotations

from edgespec.export.components.graph import GraphBuilder
from edgespec.export.components.stage import StageBuilder
from edgespec.models import Mlp


def lower_mlp(stage: StageBuilder, x: str, layer: Mlp) -> str:
    """Emits an MLP; x is its normalized input, the result is its output, both [S, hidden]."""
    gate = _activated(stage.graph, stage.linear(x, layer.gate), layer.activation)
    return stage.linear(stage.graph.op("Mul", gate, stage.linear(x, layer.up)), layer.down)


def _activated(graph: GraphBuilder, x: str, activation: str) -> str:
    if activation == "gelu_tanh":
        return graph.op("Gelu", x, approximate="tanh")
    return graph.op("Mul", x, graph.op("Sigmoid", x))
