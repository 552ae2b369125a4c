"""The mixture of experts of a layer, of which a call reads only the experts that its rows choose.

A row and one of its experts are a *pair*. Pairs are sorted by expert, and each expert's products
are over its own part of them. Engines skip products over no rows, so an expert that no row chooses
costs next to nothing, and a chosen one is read once for all its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edgespec.export.components.graph import GraphBuilder
from edgespec.export.components.mlp import gated
from edgespec.export.components.stage import StageBuilder
from edgespec.export.formats.matrices import FloatFormat, vector
from edgespec.models import Linear, Moe

# Rows that kernels compute together: each expert gets an even number of them, see `_Pairs`.
_TOGETHER = 2


def lower_moe(stage: StageBuilder, x: str, hidden: str, layer: Moe) -> str:
    """Emits a mixture of experts.

    Args:
        stage: receives the nodes.
        x: [S, hidden], its normalized input.
        hidden: [S, hidden], its input, of which the router may have a norm of its own.
        layer: description of the mixture.

    Returns:
        [S, hidden], its output, before a norm of it.
    """
    g = stage.graph
    read = x if layer.router_norm is None else stage.norm(hidden, layer.router_norm)
    chosen, shares = _routed(stage, read, layer)
    if layer.expert_factors is not None:
        factors = vector(g, stage.weights, layer.expert_factors)
        shares = g.op("Mul", shares, g.op("Gather", factors, chosen, axis=0))
    pairs = _Pairs.sorted_by_expert(g, chosen, len(layer.experts))
    rows = g.op("Gather", x, pairs.rows, axis=0)
    first = layer.experts[0]
    both = pairs.linear(stage, rows, [(expert.gate, expert.up) for expert in layer.experts])
    gate, up = g.multi_op("Split", both, outputs=2, axis=1, num_outputs=2)
    inner = gated(g, gate, up, first.activation)
    found = pairs.linear(stage, inner, [(expert.down,) for expert in layer.experts])
    # A row's experts are added in the order of their scores, whatever the other rows choose.
    found = g.op("Gather", found, pairs.places, axis=0)
    found = g.op("Reshape", found, g.ints(-1, layer.top_k, first.down.out_features))
    weighted = g.op("Mul", found, g.op("Unsqueeze", shares, g.ints(2)))
    return g.op("ReduceSum", weighted, g.ints(1), keepdims=0)


def _routed(stage: StageBuilder, x: str, layer: Moe) -> tuple[str, str]:
    """Emits the experts that each row chooses and their factors, [S, top_k] int64 and float32."""
    g = stage.graph
    # The router decides what is computed at all, so its few weights stay as they are.
    scores = FloatFormat(np.float32).linear(g, stage.weights, x, layer.router)
    if not layer.normalized:
        scores = g.op("Softmax", scores, axis=-1)
    top, chosen = g.multi_op("TopK", scores, g.ints(layer.top_k), outputs=2, axis=-1)
    shares = g.op("Softmax", top, axis=-1) if layer.normalized else top
    if layer.output_factor != 1:
        shares = g.op("Mul", shares, g.constant(layer.output_factor, np.float32))
    return chosen, shares


@dataclass(frozen=True)
class _Pairs:
    """Pairs of rows and experts, sorted by expert, with an even number for each.

    Some kernels treat a last row without a partner differently, which would make a row's result
    depend on how many others choose its expert. So an odd number is made even by a pair whose
    result is not used.

    Attributes:
        counts: [experts] int64, number of pairs of each expert.
        rows: [sorted pairs] int64, the row of each.
        places: [S * top_k] int64, where each pair is among the sorted ones.
        chosen: [S * top_k] int64, the expert of each pair.
        zeros: [sorted pairs] int64.
    """

    counts: str
    rows: str
    places: str
    chosen: str
    zeros: str

    @classmethod
    def sorted_by_expert(cls, g: GraphBuilder, chosen: str, experts: int) -> _Pairs:
        """Emits the sorting of the experts that rows choose, [S, top_k]."""
        flat = g.op("Reshape", chosen, g.ints(-1))
        axis, switch = g.constant(0, np.int64), g.ints(0, 1)
        own = g.op("OneHot", flat, g.ints(experts), switch, axis=-1)  # [S * top_k, experts]
        exact = g.op("ReduceSum", own, g.ints(0), keepdims=0)
        counts = g.op("Add", exact, g.op("Mod", exact, g.ints(_TOGETHER)))
        starts = g.op("CumSum", counts, axis, exclusive=1)
        before = g.op("Mul", own, g.op("CumSum", own, axis, exclusive=1))
        rank = g.op("ReduceSum", before, g.ints(1), keepdims=0)
        places = g.op("Add", g.op("Gather", starts, flat, axis=0), rank)
        ones = g.op("Add", g.op("Mul", chosen, g.ints(0)), g.ints(1))
        rows = g.op("Reshape", g.op("CumSum", ones, axis, exclusive=1), g.ints(-1))
        total = g.op("ReduceSum", counts, g.ints(0), keepdims=1)
        zeros = g.op("Expand", g.ints(0), total)
        rows = g.op("ScatterElements", zeros, places, rows, axis=0)
        return cls(counts, rows, places, flat, zeros)

    def linear(self, stage: StageBuilder, x: str, layers: list[tuple[Linear, ...]]) -> str:
        """Applies to sorted pairs [n, K] the linear layers of their experts; returns [n, N]."""
        g = stage.graph
        parts = g.multi_op("Split", x, self.counts, outputs=len(layers), axis=0)
        plain = [tuple(replace(each, bias=None) for each in own) for own in layers]
        found = [stage.linear(part, *own) for part, own in zip(parts, plain, strict=True)]
        y = g.op("Concat", *found, axis=0)
        biases = [each.bias for own in layers for each in own if each.bias is not None]
        if not biases:
            return y
        width = sum(each.out_features for each in layers[0])
        table = g.op("Reshape", vector(g, stage.weights, *biases), g.ints(-1, width))
        experts = g.op("ScatterElements", self.zeros, self.places, self.chosen, axis=0)
        return g.op("Add", y, g.op("Gather", table, experts, axis=0))
