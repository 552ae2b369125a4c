"""Recurrent layers in the portable graph: all rows of a tree at once.

Along a path, logarithms of decays add up. So what a row reads of an earlier one is what that one
has added, times the exponential of a sum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
from onnx import NodeProto, TensorProto

from edgespec.export.portable.lowering import FLOAT, Lowering, attributes, silu

_LANES = 16  # columns of a state that native operators keep together
_UNIT_EPS = 1e-6  # of the normalization of queries and keys
_FAINTEST = -14.0  # logarithm of the least decay: half precision still has its exponential
_END = np.iinfo(np.int64).max


def lower_short_conv(low: Lowering, node: NodeProto) -> str:
    """Emits a `ShortConv`, see `runtime/kernels/short_conv.cc`."""
    g = low.graph
    x, weight, rows = node.input[:3]
    channels = low.sizes[weight]
    low.widths[node.output[0]] = channels
    before, after, values = g.multi_op("Split", low.value(x), outputs=3, axis=1, num_outputs=3)
    own = g.op("Mul", before, values)
    recent = g.input(rows, FLOAT, ["Q", channels])
    g.output(f"new.{rows}", own, FLOAT, ["S", channels])
    return g.op("Mul", after, _convolved(low, weight, recent, own))


def _convolved(low: Lowering, weight: str, recent: str, own: str) -> str:
    """Emits a convolution over the last rows on the path of each row, [S, channels]."""
    g = low.graph
    by = low.array(weight)
    name = f"trail.{len(by)}"
    trail = low.once(name, lambda: g.input(name, TensorProto.INT64, ["S", len(by)]))
    read = g.op("Gather", g.op("Concat", recent, own, axis=0), trail, axis=0)
    weighted = g.op("Mul", read, g.constant(by, np.float32))
    return g.op("ReduceSum", weighted, g.ints(1), keepdims=0)


class Held(NamedTuple):
    """What rows read, by head; S rows follow Q recent ones.

    Attributes:
        state: [.., key size, columns].
        keys: of the rows, [.., S, key size].
        all_keys: of recent rows and these, [.., key size, Q + S].
        added: what recent rows have added, [.., Q, columns].
        fade: how much is left of what each row has added, [.., S, Q + S]; 0 where it is not seen.
            Where keys have decays of their own, that of keys, [.., S, key size, Q + S].
        since: how much is left of the state, [.., S, decay size].
        last_fade: what is left at the state that the call returns, [.., decay size, Q + S].
        last_since: likewise, [.., decay size, 1].
    """

    state: str
    keys: str
    all_keys: str
    added: str
    fade: str
    since: str
    last_fade: str
    last_since: str


GATED_DELTA = "x", "weight", "factor", "bias", "norm", "rows", "states"
"""Inputs of that operator."""
STATE_SPACE = "x", "weight", "shift", "factor", "bias", "skip", "norm", "rows", "states"
"""Inputs of that operator."""


class RecurrentLayer(ABC):
    """A layer that has states.

    Args:
        low: receives the nodes.
        node: the operator.

    Attributes:
        inputs: names of the operator's inputs.
    """

    inputs: ClassVar[Sequence[str]]

    def __init__(self, low: Lowering, node: NodeProto) -> None:
        self._low = low
        self._graph = low.graph
        self._names = dict(zip(self.inputs, node.input, strict=False))
        own = attributes(node)
        self._keys: int = own["key_heads"]
        self._heads: int = own["value_heads"]
        self._key_size: int = own["key_size"]
        self._size: int = own["value_size"]
        self._decay_size: int = own.get("decay_size", 1)
        self._activation: str = own.get("activation", "silu")
        self._eps: float = own["eps"]
        self._group = self._heads // self._keys
        self._columns = -(-self._size // _LANES) * _LANES
        self._decays = self._heads * self._decay_size
        self._channels = 2 * self._keys * self._key_size + self._heads * self._size
        low.widths[node.output[0]] = self._heads * self._size

    @abstractmethod
    def emitted(self) -> str:
        """Emits all nodes; returns [S, value heads * value size]."""

    def _apart(self, x: str, *sizes: int) -> list[str]:
        """Emits parts of the columns of x."""
        g = self._graph
        return g.multi_op("Split", x, g.ints(*sizes), outputs=len(sizes), axis=-1)

    def _of_length(self, x: str, length: float) -> str:
        """Emits keys or queries of this length; the last axis of x is one of them."""
        size = self._key_size
        weight = self._graph.constant(np.full(size, length * size**-0.5), np.float32)
        return self._graph.op("RMSNormalization", x, weight, axis=-1, epsilon=_UNIT_EPS / size)

    def _normed_by_group(self, y: str, gate: str) -> str:
        """Emits rows of a state space behind their gate and norm, if any, [S, heads * size]."""
        g = self._graph
        y = g.op("Mul", y, silu(self._low, gate))
        if not self._names["norm"]:
            return y
        # A norm is of a group's values side by side.
        values = self._heads * self._size
        size = values // self._keys
        ones = g.constant(np.ones(size), np.float32)
        y = g.op("Reshape", y, g.ints(-1, self._keys, size))
        y = g.op("RMSNormalization", y, ones, axis=-1, epsilon=self._eps)
        weight = self._low.value(self._names["norm"])
        return g.op("Mul", g.op("Reshape", y, g.ints(-1, values)), weight)


class StandardRecurrence(RecurrentLayer):
    """One in standard operators. Values by head are [key heads, value heads of each, rows, size].

    Args:
        low: see `RecurrentLayer`.
        node: likewise.
    """

    def __init__(self, low: Lowering, node: NodeProto) -> None:
        super().__init__(low, node)
        # Of a row that is kept: what convolutions read, keys, decays, and what it adds.
        self._parts = (
            self._channels,
            self._keys * self._key_size,
            self._decays,
            self._heads * self._columns,
        )
        self._recent = self._apart(
            self._graph.input(self._names["rows"], FLOAT, ["Q", sum(self._parts)]), *self._parts
        )

    @abstractmethod
    def _added(self, held: Held, values: str) -> str:
        """Emits what rows add to states besides their keys, by head."""

    def _mixed(self, own: str) -> str:
        """Emits the convolution of [S, channels], and the SiLU behind it."""
        y = _convolved(self._low, self._names["weight"], self._recent[0], own)
        if shift := self._names.get("shift"):
            y = self._graph.op("Add", y, self._low.value(shift))
        return silu(self._low, y)

    def _steps(self, x: str) -> str:
        """Emits the steps of heads, [S, heads * decay size]."""
        g = self._graph
        x = g.op("Add", x, self._low.value(self._names["bias"]))
        if not self._low.form.half:
            return g.op("Softplus", x)
        # Qualcomm's Softplus is off by a hundredth. With y = exp(-|x|) it is max(x, 0) and
        # log(1 + y) = 2 artanh(y / (2 + y)), by its series.
        y = g.op("Exp", g.op("Neg", g.op("Abs", x)))
        part = g.op("Div", y, g.op("Add", y, g.constant(2, np.float32)))
        square = g.op("Mul", part, part)
        total = g.constant(2 / 9, np.float32)
        for order in (7, 5, 3, 1):
            total = g.op("Add", g.op("Mul", total, square), g.constant(2 / order, np.float32))
        return g.op("Add", g.op("Relu", x), g.op("Mul", part, total))

    def _result(self, own: str, keys: str, queries: str, values: str, steps: str) -> str:
        """Emits what rows read of their states, and what is kept of rows and states.

        Args:
            own: [S, channels] before the convolution.
            keys: by head.
            queries: by head.
            values: by head.
            steps: [S, heads * decay size].

        Returns:
            [S, heads * size].
        """
        g = self._graph
        decays = g.op("Mul", steps, self._low.value(self._names["factor"]))
        decays = g.op("Max", decays, g.constant(_FAINTEST, np.float32))
        held = self._held(keys, decays)
        new = self._added(held, values)
        added = g.op("Concat", held.added, new, axis=2)
        y = g.op("MatMul", self._alike(queries, held), added)
        y = g.op("Add", self._of_state(queries, held), y)
        self._keep_rows(own, keys, g.op("Exp", decays), new)
        self._keep_state(held, added)
        if self._columns != self._size:
            y = g.op("Slice", y, g.ints(0), g.ints(self._size), g.ints(3))
        return self._by_row(y, self._heads * self._size)

    def _held(self, keys: str, decays: str) -> Held:
        """Emits how paths lead from the state to rows.

        Args:
            keys: by head.
            decays: their logarithms, [S, heads * decay size].
        """
        g = self._graph
        recent_keys = self._by_head(self._recent[1], 1, self._key_size)
        both = g.op("Concat", recent_keys, keys, axis=2)
        all_keys = g.op("Transpose", both, perm=[0, 1, 3, 2])
        dims = [self._heads, self._key_size, self._columns]
        state = g.input(self._names["states"], FLOAT, dims)
        return Held(
            g.op("Reshape", state, g.ints(self._keys, self._group, *dims[1:])),
            keys,
            all_keys,
            self._by_head(self._recent[3], self._group, self._columns),
            *self._left(decays, all_keys),
        )

    def _left(self, decays: str, all_keys: str) -> tuple[str, str, str, str]:
        """Emits `fade`, `since`, `last_fade` and `last_since` of `Held`."""
        g = self._graph
        once = self._low.once
        lines = once("lines", lambda: g.input("lines", FLOAT, ["S+1", "Q+S"]))
        unseen = once("unseen", lambda: g.input("unseen", FLOAT, ["Q+S", "Q+S+1"]))
        least = g.constant(np.exp(np.float32(_FAINTEST)), np.float32)
        recent = g.op("Log", g.op("Max", self._recent[2], least))
        every = g.op("Concat", recent, decays, axis=0)
        every = g.op("Reshape", every, g.ints(-1, self._keys, self._group, self._decay_size))
        every = g.op("Transpose", every, perm=[1, 2, 3, 0])
        wide = self._decay_size > 1
        if wide:  # below, dimensions are then [.., rows, decay size, Q + S]
            every = g.op("Unsqueeze", every, g.ints(2))
            lines = once("wide lines", partial(g.op, "Unsqueeze", lines, g.ints(1)))
        # Sums of the decays between two rows, and not differences of sums, which few bits spoil.
        left = g.op("Exp", g.op("MatMul", g.op("Mul", lines, every), unseen))
        first, last, end = g.ints(0), g.ints(-1), g.ints(_END)
        rows, columns = g.ints(2), g.ints(-1)
        fades = g.op("Mul", g.op("Slice", left, first, last, columns), lines)
        since = g.op("Slice", left, last, end, columns)
        fade, since_rows = (g.op("Slice", each, first, last, rows) for each in (fades, since))
        last_fade, last_since = (g.op("Slice", each, last, end, rows) for each in (fades, since))
        if wide:
            fade = g.op("Mul", fade, g.op("Unsqueeze", all_keys, g.ints(2)))
            since_rows = g.op("Squeeze", since_rows, columns)
            last_fade, last_since = (
                g.op("Squeeze", each, rows) for each in (last_fade, last_since)
            )
        return fade, since_rows, last_fade, last_since

    def _alike(self, x: str, held: Held) -> str:
        """Emits how alike queries or keys are to what is left of keys they see, [.., S, Q + S]."""
        g = self._graph
        if self._decay_size == 1:
            return g.op("Mul", g.op("MatMul", x, held.all_keys), held.fade)
        x = g.op("Unsqueeze", x, g.ints(3))
        return g.op("Squeeze", g.op("MatMul", x, held.fade), g.ints(3))

    def _of_state(self, x: str, held: Held) -> str:
        """Emits what queries or keys read of the state before, [.., S, columns]."""
        return self._graph.op("MatMul", self._graph.op("Mul", x, held.since), held.state)

    def _keep_rows(self, own: str, keys: str, decays: str, new: str) -> None:
        """Emits what the runtime keeps of rows."""
        g = self._graph
        *_, key_width, _, width = self._parts
        parts = own, self._by_row(keys, key_width), decays, self._by_row(new, width)
        kept = g.op("Concat", *parts, axis=1)
        g.output(f"new.{self._names['rows']}", kept, FLOAT, ["S", sum(self._parts)])

    def _keep_state(self, held: Held, added: str) -> None:
        """Emits the state that the call returns."""
        g = self._graph
        left = g.op("Mul", held.all_keys, held.last_fade)
        moved = g.op("Mul", held.state, held.last_since)
        moved = g.op("Add", moved, g.op("MatMul", left, added))
        dims = [self._heads, self._key_size, self._columns]
        moved = g.op("Reshape", moved, g.ints(*dims))
        g.output(f"new.{self._names['states']}", moved, FLOAT, dims)

    def _by_head(self, x: str, group: int, size: int) -> str:
        """Emits the rows of x [rows, heads * size] by head."""
        x = self._graph.op("Reshape", x, self._graph.ints(-1, self._keys, group, size))
        return self._graph.op("Transpose", x, perm=[1, 2, 0, 3])

    def _by_row(self, x: str, width: int) -> str:
        """Emits values by head as rows again."""
        x = self._graph.op("Transpose", x, perm=[2, 0, 1, 3])
        return self._graph.op("Reshape", x, self._graph.ints(-1, width))

    def _values(self, x: str) -> str:
        """Emits values [S, heads * size] by head, with zeros up to the columns of a state."""
        x = self._by_head(x, self._group, self._size)
        missing = self._columns - self._size
        return self._graph.op("Pad", x, self._graph.ints(*[0] * 7, missing)) if missing else x

    def _of_heads(self, x: str) -> str:
        """Emits a number for each row and head, [S, heads], by head."""
        return self._by_head(x, self._group, 1)
