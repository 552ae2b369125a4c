"""Layers that read one of several streams and correct all of them, in the native graph.

All streams of a row lie side by side, [S, streams * hidden]. What a layer adds to them is computed
with operators that treat each row, and each number of it, alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgespec.export.graph_builder import NATIVE

if TYPE_CHECKING:
    from edgespec.export.native.layers import LayerGraph
    from edgespec.models import Linear
    from edgespec.models.layers.decoder import AltUp
    from edgespec.models.layers.sublayers import AltUpLayer

_LEAST = 1e-12  # added to mean squares that rows are divided by the root of


def spread(native: LayerGraph, hidden: str, altup: AltUp) -> str:
    """Emits the streams that begin with an embedding [S, hidden]."""
    size = _magnitude(native, hidden)
    parts = [_like(native, size, hidden, each) for each in altup.projections]
    return native.graph.op("Concat", hidden, *parts, axis=1)


def gathered(native: LayerGraph, wide: str, altup: AltUp) -> str:
    """Emits the mean of the streams behind the last layer, [R, hidden]."""
    g = native.graph
    count = len(altup.unembeddings) + 1
    first, *others = g.multi_op("Split", wide, outputs=count, axis=1, num_outputs=count)
    pairs = zip(others, altup.unembeddings, strict=True)
    size = _magnitude(native, first)
    parts = [_like(native, size, each, linear) for each, linear in pairs]
    return g.op("Mul", g.op("Sum", first, *parts), g.constant(1 / count, np.float32))


def lower_altup(native: LayerGraph, wide: str, number: int, layer: AltUpLayer) -> str:
    """Emits a layer.

    Args:
        native: receives the nodes.
        wide: [S, streams * hidden], the streams.
        number: number of the layer.
        layer: description of the layer.

    Returns:
        What it adds to the streams.
    """
    g = native.graph
    count = layer.streams
    streams = g.multi_op("Split", wide, outputs=count, axis=1, num_outputs=count)
    columns = _columns(native, _routed(native, streams[0], layer), layer.predict, count**2)
    mixed = [
        g.op("Sum", *(g.op("Mul", each, columns[n * count + k]) for k, each in enumerate(streams)))
        for n in range(count)
    ]
    active = g.op("Add", streams[0], mixed[0])
    output = _inner(native, active, number, layer)
    innovation = g.op("Sub", output, active)
    factors = _columns(native, _routed(native, output, layer), layer.correct, count)
    one = g.constant(1.0, np.float32)
    changes = [
        g.op("Add", each, g.op("Mul", innovation, g.op("Add", factor, one)))
        for each, factor in zip(mixed, factors, strict=True)
    ]
    first = g.op("Add", streams[0], changes[0])
    if layer.scale is not None:
        first = g.op("Mul", first, native.vector(layer.scale))
    injection = layer.injection
    injected = native.norm(native.lowered(first, number, injection), injection.post_norm)
    others = [g.op("Add", each, injected) for each in changes[1:]]
    return g.op("Concat", changes[0], *others, axis=1)


def cut_off(native: LayerGraph, gate: str, cutoff: float) -> str:
    """Emits what gates [S, width] exceed their mean by so many deviations, or 0."""
    g = native.graph
    mean, deviation = _moments(native, gate)
    least = g.op("Add", mean, g.op("Mul", deviation, g.constant(cutoff, np.float32)))
    return g.op("Relu", g.op("Sub", gate, least))


def _inner(native: LayerGraph, active: str, number: int, layer: AltUpLayer) -> str:
    """Emits attention with a learned residual beside it (Laurel), and the MLP, [S, hidden]."""
    g = native.graph
    attention = layer.attention
    mlp = layer.mlp
    x = native.norm(active, attention.norm)
    laurel = native.norm(
        native.linear(native.linear(x, layer.left), layer.right), layer.laurel_norm
    )
    attended = native.norm(native.lowered(x, number, attention), attention.post_norm)
    stream = g.op("Sum", active, attended, x, laurel)
    stream = g.op("Mul", stream, g.constant(0.5**0.5, np.float32))
    found = native.lowered(native.norm(stream, mlp.norm), number, mlp)
    return g.op("Add", stream, native.norm(found, mlp.post_norm))


def _routed(native: LayerGraph, x: str, layer: AltUpLayer) -> str:
    """Emits the hyperbolic tangents of the router's scores, [S, streams]."""
    g = native.graph
    scores = native.linear(native.norm(x, layer.router_norm), layer.router, exact=True)
    two = g.constant(2.0, np.float32)
    one = g.constant(1.0, np.float32)
    shares = g.op("Sigmoid", g.op("Mul", scores, two), domain=NATIVE)
    return g.op("Sub", g.op("Mul", shares, two), one)


def _columns(native: LayerGraph, x: str, linear: Linear, count: int) -> list[str]:
    """Emits the results of a layer one by one, [S, 1] each."""
    y = native.linear(x, linear, exact=True)
    return native.graph.multi_op("Split", y, outputs=count, axis=1, num_outputs=count)


def _like(native: LayerGraph, magnitude: str, x: str, linear: Linear) -> str:
    """Emits a projection of x, of which each row gets a magnitude [S, 1]."""
    g = native.graph
    ones = native.graph.constant(np.ones(linear.out_features), np.float32)
    y = g.op("Norm", native.linear(x, linear), ones, domain=NATIVE, epsilon=_LEAST)
    return g.op("Mul", y, magnitude)


def _magnitude(native: LayerGraph, x: str) -> str:
    """Emits the root of the mean square of each row, [S, 1]: the deviation with its negative."""
    both = native.graph.op("Concat", x, native.graph.op("Neg", x), axis=1)
    return _moments(native, both)[1]


def _moments(native: LayerGraph, x: str) -> list[str]:
    """Emits mean and deviation of each row of x [S, width], [S, 1] each."""
    both = native.graph.op("Moments", x, domain=NATIVE, epsilon=_LEAST)
    return native.graph.multi_op("Split", both, outputs=2, axis=1, num_outputs=2)
