"""Sublayers with a state: short convolutions, and linear attention by the gated delta rule.

A stage reads what the text before the call has left, laid out as it is computed with: `rows`
[K - 1, channels], what a convolution reads of the last positions, and with a state

* `state` [H, key size, value size] at the last border, a multiple of `CHUNK` positions,
* `keys` [key heads, P, key size], `errors` and `added` [H, P, value size], `rates` and `decays`
  [P, H] of the P = `CHUNK` positions behind the border, of which those to come count as nothing.

It returns what each of its own rows would add, and changes nothing. The runtime adds accepted rows.

The rows of a call may be a tree, so each row reads its ancestors and not its neighbours (Wu et al.,
STree, 2025). Inputs say which rows those are:

* `trail` [K, S]: for each row, its last K - 1 ancestors and itself, the nearest last, as numbers of
  `rows` and the S rows of the call, one behind the other.
* `ancestors` [P + S, P + S]: 1 where a *near* row, one of the P positions or of the call, is an
  ancestor of another, else 0; no row is its own ancestor. `own_rows` [S]: the numbers of the
  call's rows.
* `unit` [P + S, P + S]: the unit matrix.
* `halves` [6, P + S, P + S]: for n of 0 to 5, 1 where an ancestor is in the first half, and the row
  in the second half, of the same 2 ** (n + 1) positions behind the border.

Every sum over ancestors is in the order of their positions, with exact zeros between them, so a
row has the same bits in any call.
"""

from __future__ import annotations

import numpy as np

from edgespec.bundle.sublayers import CHUNK, recurrent_input, recurrent_output
from edgespec.export.components.mlp import silu
from edgespec.export.components.stage import FLOAT, INT64, StageBuilder
from edgespec.export.formats.matrices import vector
from edgespec.models import GatedDelta, ShortConvolution
from edgespec.models.layers import Convolution

_LEVELS = CHUNK.bit_length()
_EPSILON = 1e-6  # of the normalization of queries and keys


def lower_convolution(stage: StageBuilder, x: str, index: int, layer: ShortConvolution) -> str:
    """Emits a gated short convolution.

    Args:
        stage: receives the nodes, inputs and outputs.
        x: [S, hidden], the layer's normalized input.
        index: number of the layer.
        layer: description of the sublayer.

    Returns:
        [S, hidden], what it adds to the residual stream.
    """
    g, width = stage.graph, layer.convolution.channels
    before, after, value = g.multi_op(
        "Split", stage.linear(x, layer.inner), outputs=3, axis=1, num_outputs=3
    )
    rows = g.op("Mul", before, value)
    stage.output(recurrent_output(index), rows, FLOAT, "S", width)
    convolved = _convolved(stage, rows, index, layer.convolution)
    return stage.linear(g.op("Mul", after, convolved), layer.out)


def lower_delta(stage: StageBuilder, x: str, index: int, layer: GatedDelta) -> str:
    """Emits the gated delta rule; parameters and result are those of `lower_convolution`.

    With the state S at the border, a row i is (v - exp(t) k S) rate at first (its *error*), where t
    is the sum of decays from the border. What the rows a before it in the chunk have added changes
    it to u[i] = error[i] - sum of A[i, a] u[a], A[i, a] = rate[i] exp(t[i] - t[a]) k[i] k[a]. So
    u = (1 + A)^-1 error (Yang et al., 2024), see `_inverse`.
    """
    g, heads, size = stage.graph, layer.value_heads, layer.value_size
    values, past = heads * size, _Past(stage, index)
    state = past.read("state", heads, layer.key_size, size)

    mixed = stage.linear(x, layer.mixed)
    convolved = silu(g, _convolved(stage, mixed, index, layer.convolution))
    keys = layer.key_heads * layer.key_size
    q, k, v = g.multi_op("Split", convolved, g.ints(keys, keys, values), outputs=3, axis=1)
    # A unit vector; a query is divided by the root of its size as well.
    q = _unit(stage, q, layer, layer.key_size**-1.0)
    k_flat = g.op("Reshape", _unit(stage, k, layer, layer.key_size**-0.5), g.ints(-1, keys))
    rate, decay = _gates(stage, x, layer)
    own_q = _heads(stage, g.op("Reshape", q, g.ints(-1, keys)), layer.key_heads)
    own_k = _heads(stage, k_flat, layer.key_heads)
    near_k = g.op(
        "Concat", past.read("keys", layer.key_heads, CHUNK, layer.key_size), own_k, axis=1
    )
    own_q, own_k, near_k = (_by_value_head(stage, each, layer) for each in (own_q, own_k, near_k))
    own_v, own_rate = _heads(stage, v, heads), _heads(stage, rate, heads)

    near = _Near(stage, g.op("Concat", past.read("decays", CHUNK, heads), decay, axis=0))
    rates = _heads(stage, g.op("Concat", past.read("rates", CHUNK, heads), rate, axis=0), heads)
    turned_k = g.op("Transpose", near_k, perm=[0, 2, 1])
    alike = g.op("Mul", g.op("MatMul", near_k, turned_k), rates)  # [H, P + S, P + S]

    # One product for keys and queries reads the state once.
    both = g.op("MatMul", g.op("Concat", own_k, own_q, axis=1), state)
    by_k, by_q = g.multi_op("Split", both, outputs=2, axis=1, num_outputs=2)
    error = g.op("Mul", by_k, near.own_fading)
    error = g.op("Mul", g.op("Sub", own_v, error), own_rate)
    errors = g.op("Concat", past.read("errors", heads, CHUNK, size), error, axis=1)
    added = g.op("MatMul", _inverse(stage, g.op("Mul", alike, near.fading), near), errors)
    all_added = g.op("Concat", past.read("added", heads, CHUNK, size), added, axis=1)

    seen = g.op("Mul", g.op("MatMul", own_q, turned_k), near.own(near.fading))
    result = g.op("Mul", by_q, near.own_fading)
    result = g.op("Add", result, g.op("MatMul", seen, all_added))
    itself = g.op("ReduceSum", g.op("Mul", own_q, own_k), g.ints(-1), keepdims=1)
    result = g.op("Add", result, g.op("Mul", itself, added))

    rows = [mixed, k_flat, _rows(stage, error, values), _rows(stage, added, values), rate, decay]
    together = g.op("Concat", *rows, axis=1)
    stage.output(recurrent_output(index), together, FLOAT, "S", sum(layer.parts))
    result = g.op("Transpose", result, perm=[1, 0, 2])
    result = stage.norm(result, layer.result_norm)
    result = g.op("Reshape", result, g.ints(-1, values))
    return stage.linear(g.op("Mul", result, silu(g, stage.linear(x, layer.gate))), layer.out)


class _Past:
    """What a sublayer reads of the text before the call."""

    def __init__(self, stage: StageBuilder, index: int) -> None:
        self._stage, self._index = stage, index

    def read(self, part: str, *shape: int) -> str:
        """Declares one of the inputs."""
        return self._stage.input(recurrent_input(self._index, part), FLOAT, *shape)


class _Near:
    """How much of what a near row added is left at another: exp(t[i] - t[a]) for its ancestors a.

    Attributes:
        own_rows: [S] numbers of the call's rows.
        fading: [H, P + S, P + S]; 0 where a row is no ancestor.
        own_fading: [H, S, 1], how much of the state is left at the call's rows.
    """

    def __init__(self, stage: StageBuilder, decay: str) -> None:
        g = self._graph = stage.graph
        seen = stage.shared("ancestors", FLOAT, "P+S", "P+S")
        self.own_rows = stage.shared("own_rows", INT64, "S")
        total = g.op("Add", g.op("MatMul", seen, decay), decay)
        total = g.op("Transpose", total, perm=[1, 0])
        later, sooner = g.op("Unsqueeze", total, g.ints(2)), g.op("Unsqueeze", total, g.ints(1))
        # Of rows that are no ancestors, the difference may be beyond what exp can take.
        between = g.op("Min", g.op("Sub", later, sooner), g.constant(0, np.float32))
        self.fading = g.op("Mul", g.op("Exp", between), seen)
        self.own_fading = g.op("Exp", self.own(later))

    def own(self, value: str) -> str:
        """Returns the part of [H, P + S, …] that belongs to the call's rows."""
        return self._graph.op("Gather", value, self.own_rows, axis=1)


def _inverse(stage: StageBuilder, a: str, near: _Near) -> str:
    """Emits the call's rows of (1 + A)^-1, [H, S, P + S], see `lower_delta`.

    With T the inverse within each b positions, and L what of A leads from the first b to the second
    b of twice as many, the inverse within those is T - T L T. Powers of A would lose all digits in
    texts that repeat themselves. The halves are those of positions, so a row's bits do not depend
    on its place in the call. A chain of ancestors has less than 64 = 2 ** 6 positions.
    """
    g = stage.graph
    halves = stage.shared("halves", FLOAT, _LEVELS, "P+S", "P+S")
    links = [
        g.op("Mul", a, g.op("Gather", halves, g.constant(level, np.int64), axis=0))
        for level in range(_LEVELS)
    ]
    unit = stage.shared("unit", FLOAT, "P+S", "P+S")
    inverse = g.op("Sub", unit, links[0])
    for link in links[1:-1]:
        change = g.op("MatMul", g.op("MatMul", inverse, link), inverse)
        inverse = g.op("Sub", inverse, change)
    own = near.own(inverse)
    return g.op("Sub", own, g.op("MatMul", g.op("MatMul", own, links[-1]), inverse))


def _convolved(stage: StageBuilder, rows: str, index: int, layer: Convolution) -> str:
    """Emits a convolution of rows [S, D] over each row's ancestors; the result is [S, D], too."""
    g = stage.graph
    trail = stage.shared("trail", INT64, layer.size, "S")
    earlier = _Past(stage, index).read("rows", layer.size - 1, layer.channels)
    near = g.op("Concat", earlier, rows, axis=0)
    weight = vector(g, stage.weights, layer.weight)
    weight = g.op("Reshape", weight, g.ints(layer.channels, layer.size))
    weight = g.op("Transpose", weight, perm=[1, 0])
    convolved = ""
    for place in range(layer.size):
        number = g.constant(place, np.int64)
        read = g.op("Gather", near, g.op("Gather", trail, number, axis=0), axis=0)
        part = g.op("Mul", read, g.op("Gather", weight, number, axis=0))
        convolved = g.op("Add", convolved, part) if convolved else part
    return convolved


def _gates(stage: StageBuilder, x: str, layer: GatedDelta) -> tuple[str, str]:
    """Emits the rates and decays of rows, [S, value heads] each."""
    g, heads = stage.graph, layer.value_heads
    both = stage.linear(x, layer.rate, layer.decay)
    rate, decay = g.multi_op("Split", both, g.ints(heads, heads), outputs=2, axis=1)
    log, bias = (vector(g, stage.weights, name) for name in (layer.log_decay, layer.decay_bias))
    speed = g.op("Softplus", g.op("Add", decay, bias))
    return g.op("Sigmoid", rate), g.op("Mul", speed, g.op("Neg", g.op("Exp", log)))


def _unit(stage: StageBuilder, x: str, layer: GatedDelta, scale: float) -> str:
    """Normalizes each head of [S, key heads * key size] to length scale * sqrt(key size)."""
    g, size = stage.graph, layer.key_size
    heads = g.op("Reshape", x, g.ints(-1, layer.key_heads, size))
    weight = g.constant([scale] * size, np.float32)
    return g.op("RMSNormalization", heads, weight, axis=-1, epsilon=_EPSILON / size)


def _by_value_head(stage: StageBuilder, keys: str, layer: GatedDelta) -> str:
    """Repeats keys [key heads, n, key size] for the value heads: [value heads, n, key size]."""
    g, heads = stage.graph, layer.value_heads
    if heads == layer.key_heads:
        return keys
    return g.op("Gather", keys, g.ints(*np.arange(heads) * layer.key_heads // heads), axis=0)


def _heads(stage: StageBuilder, rows: str, heads: int) -> str:
    """Splits rows [n, heads * size] into heads: [heads, n, size]."""
    g = stage.graph
    split = g.op("Reshape", rows, g.ints(0, heads, -1))
    return g.op("Transpose", split, perm=[1, 0, 2])


def _rows(stage: StageBuilder, heads: str, width: int) -> str:
    """Joins heads [heads, n, size] to rows [n, width]."""
    g = stage.graph
    return g.op("Reshape", g.op("Transpose", heads, perm=[1, 0, 2]), g.ints(-1, width))
