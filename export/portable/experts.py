"""Mixtures of experts in the portable graph, of which a call reads those that its rows choose.

A row and one of its experts are a pair. Pairs are sorted by expert and split, and each expert
multiplies its own part. Engines skip products over no rows, and a chosen expert is read once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from onnx import NodeProto

from edgespec.export.graph_builder import CLUSTERS
from edgespec.export.portable.lowering import Lowering, attributes


class _Pairs(NamedTuple):
    """Pairs of S rows and the experts of each.

    Attributes:
        experts: [pairs] int64, the expert of each, row by row.
        counts: [experts] int64, the number of pairs of each expert.
        order: [pairs] int64, the pairs sorted by expert.
        places: [pairs] int64, where each pair is among the sorted ones.
    """

    experts: str
    counts: str
    order: str
    places: str


def lower_expert_linear(low: Lowering, node: NodeProto) -> str:
    """Emits an `ExpertLinear`, see `runtime/kernels/expert_linear.cc`."""
    g = low.graph
    own = attributes(node)
    count = own["experts"]
    width = sum(own["columns"])
    x, chosen, bias, shares = (low.value(name) for name in node.input[:4])
    if node.output[0] == CLUSTERS:  # thousands of a few tokens each: all are scored
        matrix = low.matrix(node.input[4], own["formats"], count * width)
        y = low.weights.linear(x, [matrix], low.width(node.input[0], matrix))
        y = g.op("Reshape", y, g.ints(-1, count, width))
        return g.op("GatherND", y, g.op("Unsqueeze", chosen, g.ints(2)), batch_dims=1)
    pairs = _pairs(low, chosen, count)
    of_row = pairs.order
    if not shares:  # x has a row for all choices of a row
        of_row = g.op("Div", of_row, g.op("Shape", chosen, start=1, end=2))
    x = g.op("Gather", x, of_row, axis=0)
    matrices = low.matrices(node, 4, count)
    columns = low.width(node.input[0], matrices[0])
    parts = g.multi_op("Split", x, pairs.counts, outputs=count, axis=0)
    found = []
    for expert, part in enumerate(parts):
        own_matrices = [
            replace(
                matrix,
                name=f"{matrix.name}[{expert}]",
                offset=matrix.offset + expert * matrix.nbytes,
            )
            for matrix in matrices
        ]
        found.append(low.weights.linear(part, own_matrices, columns))
    y = g.op("Gather", g.op("Concat", *found, axis=0), pairs.places, axis=0)
    if bias:
        y = g.op("Add", y, g.op("Gather", bias, pairs.experts, axis=0))
    low.widths[node.output[0]] = width
    if not shares:
        return y
    shape = g.op("Concat", g.op("Shape", chosen), g.ints(width), axis=0)
    weighted = g.op("Mul", g.op("Reshape", y, shape), g.op("Unsqueeze", shares, g.ints(2)))
    return g.op("ReduceSum", weighted, g.ints(1), keepdims=0)


def _pairs(low: Lowering, chosen: str, count: int) -> _Pairs:
    """Emits the sorting of the experts that rows choose, [S, T], once for all that need it."""
    key = "pairs", chosen
    if key not in low.shared:
        low.shared[key] = _sorted(low, chosen, count)
    pairs: _Pairs = low.shared[key]
    return pairs


def _sorted(low: Lowering, chosen: str, count: int) -> _Pairs:
    g = low.graph
    flat = g.op("Reshape", chosen, g.ints(-1))
    first = g.constant(0, np.int64)
    own = g.op("OneHot", flat, g.ints(count), g.ints(0, 1), axis=-1)  # [pairs, experts]
    counts = g.op("ReduceSum", own, g.ints(0), keepdims=0)
    starts = g.op("CumSum", counts, first, exclusive=1)
    before = g.op("Mul", own, g.op("CumSum", own, first, exclusive=1))
    rank = g.op("ReduceSum", before, g.ints(1), keepdims=0)
    places = g.op("Add", g.op("Gather", starts, flat, axis=0), rank)
    shape = g.op("Shape", flat)
    numbers = g.op("CumSum", g.op("Expand", g.ints(1), shape), first, exclusive=1)
    order = g.op("ScatterElements", g.op("Expand", g.ints(0), shape), places, numbers, axis=0)
    return _Pairs(flat, counts, order, places)
