"""Mixtures of experts in the native graph: rows read the matrices of their experts alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import UnsupportedModelError
from edgespec.export.graph_builder import NATIVE
from edgespec.models import Linear, Moe
from edgespec.models.layers.sublayers import Mlp

if TYPE_CHECKING:
    from edgespec.export.native.graph import NativeGraphBuilder
    from edgespec.export.native.layers import LayerGraph
    from edgespec.export.native.weights import FusedMatrix


_NO_SCORE = -1e30  # of an expert that cannot be chosen


def emit_experts(native: NativeGraphBuilder, x: str, chosen: str, shares: str, layer: Moe) -> str:
    """Emits the sum of the experts of each row, see `LayerGraph.experts`."""
    *first, downs = layer.stacks
    inner = products(native, x, chosen, first)
    expert = layer.experts[0]
    if isinstance(expert, Mlp):
        inner = native.gated(inner, expert.activation)
    else:
        inner = native.activated(inner, expert.activation)
    return products(native, inner, chosen, [downs], shares)


def routed(native: LayerGraph, x: str, hidden: str, layer: Moe) -> tuple[str, str]:
    """Emits the experts that each row chooses and their shares, [S, top_k] int64 and float32.

    Of equal scores, the expert of the lower number comes first, as ONNX defines it.

    Args:
        native: receives the nodes.
        x: [S, hidden], the normalized input of the mixture.
        hidden: [S, hidden], its input, of which the router may have a norm of its own.
        layer: description of the mixture.
    """
    g = native.graph
    read = x if layer.router_norm is None else native.norm(hidden, layer.router_norm)
    # The router decides what is computed at all, so its few weights stay as they are.
    scores = native.linear(read, layer.router, exact=True)
    if layer.reach is not None:
        chosen, shares = _one_by_one(native, scores, layer, layer.reach)
    elif layer.sigmoid or layer.choice_bias is not None:
        chosen, shares = _by_ranks(native, scores, layer)
    else:
        if not layer.normalized:
            scores = g.op("Softmax", scores, domain=NATIVE)
        top, chosen = g.multi_op("TopK", scores, g.ints(layer.top_k), outputs=2, axis=-1)
        shares = g.op("Softmax", top, domain=NATIVE) if layer.normalized else top
    if layer.output_factor != 1:
        shares = g.op("Mul", shares, g.constant(layer.output_factor, np.float32))
    if layer.expert_factors is not None:
        factors = native.vector(layer.expert_factors)
        shares = g.op("Mul", shares, g.op("Gather", factors, chosen, axis=0))
    return chosen, shares


def _by_ranks(native: LayerGraph, scores: str, layer: Moe) -> tuple[str, str]:
    """Emits chosen experts and their shares, see `routed`, where ranks may differ from shares."""
    g = native.graph
    ranked = scores = g.op("Sigmoid" if layer.sigmoid else "Softmax", scores, domain=NATIVE)
    if layer.choice_bias is not None:
        ranked = g.op("Add", scores, native.vector(layer.choice_bias))
    _, chosen = g.multi_op("TopK", ranked, g.ints(layer.top_k), outputs=2, axis=-1)
    shares = g.op("GatherElements", scores, chosen, axis=1)
    if layer.normalized:
        # Sums of neighbours may depend on where a row lies in memory; a sum of columns does not.
        columns = [shares]
        count = layer.top_k
        if count > 1:
            columns = g.multi_op("Split", shares, outputs=count, axis=1, num_outputs=count)
        shares = g.op("Div", shares, g.op("Sum", *columns, g.constant(layer.least_sum, np.float32)))
    return chosen, shares


def _one_by_one(native: LayerGraph, scores: str, layer: Moe, reach: float) -> tuple[str, str]:
    """Emits chosen experts and their shares, see `routed` and `Moe.reach`."""
    g = native.graph
    count = layer.top_k
    none = g.constant(_NO_SCORE, np.float32)
    size = g.op("Add", g.op("Relu", scores), g.op("Relu", g.op("Neg", scores)))
    top, chosen = g.multi_op("TopK", scores, g.ints(count), outputs=2, axis=-1)
    bests, experts = [top], [chosen]
    if count > 1:
        bests = g.multi_op("Split", top, outputs=count, axis=1, num_outputs=count)
        experts = g.multi_op("Split", chosen, outputs=count, axis=1, num_outputs=count)
    numbers = g.ints(*range(len(layer.experts)))
    left, shares = scores, list[str]()
    for best, expert in zip(bests, experts, strict=True):
        larger = g.op("Where", g.op("Less", size, best), best, size)
        apart = g.op("Div", g.op("Sub", best, scores), larger)
        far = g.op("Less", g.constant(reach, np.float32), apart)
        among = g.op("Softmax", g.op("Where", far, none, left), domain=NATIVE)
        shares.append(g.op("GatherElements", among, expert, axis=1))
        others = g.op("Where", g.op("Less", expert, numbers), left, none)
        left = g.op("Where", g.op("Less", numbers, expert), left, others)
    return chosen, g.op("Concat", *shares, axis=1) if count > 1 else shares[0]


def products(
    native: NativeGraphBuilder,
    x: str,
    chosen: str,
    layers: Sequence[Sequence[Linear]],
    shares: str = "",
) -> str:
    """Emits an `ExpertLinear` of some layers of each expert, side by side.

    Args:
        native: receives the nodes.
        x: what they read, a row for each row of `chosen`, or for each pair of one and an expert.
        chosen: [rows, top_k] int64, the experts of each row.
        layers: the layers, each of all experts.
        shares: [rows, top_k], the factors of a row's experts, whose results are added; empty: they
            are not.

    Raises:
        UnsupportedModelError: if the experts' matrices have several formats.
    """
    matrices = [_stacked(native, own) for own in layers]
    bias = ""
    if any(each.bias is not None for own in layers for each in own):
        names = [each.bias for expert in zip(*layers, strict=True) for each in expert]
        if not all(names):
            raise UnsupportedModelError("some experts have biases and some have none")
        flat = [native.read(name).reshape(-1) for name in names if name]
        bias = native.graph.constant(np.concatenate(flat).reshape(len(layers[0]), -1), np.float32)
    return native.graph.op(
        "ExpertLinear",
        x,
        chosen,
        bias,
        shares,
        *map(native.tiles, matrices),
        domain=NATIVE,
        experts=len(layers[0]),
        formats=" ".join(each.format for each in matrices),
        columns=[own[0].out_features for own in layers],
    )


def _stacked(native: NativeGraphBuilder, layers: Sequence[Linear]) -> FusedMatrix:
    """Writes a matrix of each expert, one behind the other, all in one format.

    Raises:
        UnsupportedModelError: if they have several formats.
    """
    try:
        return native.weights.matrix(*(each.weight for each in layers))
    except ValueError as error:
        raise UnsupportedModelError(f"experts of a layer have several formats: {error}") from error
