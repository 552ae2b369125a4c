"""Recurrent layers in ONNX Runtime's own operators, which compute rows that follow each other.

So a tree is a batch of its paths, each from the state that is read: rows that several paths have
are computed again in each. What is kept of a row is what the operators read of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from edgespec.export.graph_builder import CONTRIB
from edgespec.export.portable.lowering import FLOAT
from edgespec.export.portable.recurrent import GATED_DELTA, STATE_SPACE, RecurrentLayer

_NO_STEP = -1e4  # what is no row leaves a state as it is: its step and its rate are 0


class Moves(NamedTuple):
    """What moves states along B paths of T rows, [B, T, ...].

    Attributes:
        queries: all heads' side by side.
        keys: likewise.
        values: likewise, what is added to states.
        decays: logarithms, a number for each head, or for each of its keys' numbers.
        rates: of the gated delta rule, a number for each head; empty: keys and values are added as
            they are.
    """

    queries: str
    keys: str
    values: str
    decays: str
    rates: str = ""


class FusedRecurrence(RecurrentLayer):
    """See `RecurrentLayer`; what is kept of a row is in another form than in native graphs."""

    def fits(self) -> bool:
        """Whether the device has the operators."""
        return self._low.form.fuses("recurrence")

    @abstractmethod
    def emitted(self) -> str:
        """See `RecurrentLayer`."""

    def _along_paths(self, kept: str, *sizes: int) -> tuple[str, list[str]]:
        """Emits what is computed of rows on their paths, each on its own.

        Args:
            kept: [S, sizes], what a convolution reads, and the rates and steps of heads.
            sizes: columns of these.

        Returns:
            What the convolution and the SiLU behind it give, [B, T, channels], and the others.
        """
        g = self._graph
        name = self._names["rows"]
        rows = g.input(name, FLOAT, ["Q", sum(sizes)])
        g.output(f"new.{name}", kept, FLOAT, ["S", sum(sizes)])
        every = g.op("Concat", rows, kept, axis=0)
        paths = self._told("paths", TensorProto.INT64, "B", "T")
        own, *gates = self._apart(g.op("Gather", every, paths, axis=0), *sizes)
        real = self._told("real", TensorProto.BOOL, "B", "T", 1)
        none = g.constant(_NO_STEP, np.float32)
        weight = g.constant(self._low.array(self._names["weight"]).T[:, None], np.float32)
        shift = self._names.get("shift")
        mixed, _ = g.multi_op(
            "CausalConvWithState",
            own,
            weight,
            self._low.value(shift) if shift else "",
            outputs=2,
            domain=CONTRIB,
            activation="silu",
            channels_last=1,
        )
        return mixed, [g.op("Where", real, each, none) for each in gates]

    def _moved(self, moves: Moves) -> str:
        """Emits what rows read of states on their paths, [B, T, heads * size].

        The state behind the first path is the one that the call returns.
        """
        g = self._graph
        name = self._names["states"]
        dims = [self._heads, self._key_size, self._columns]
        batch = self._low.once("batch", self._batch)
        state = g.op("Expand", g.input(name, FLOAT, dims), batch)
        y, behind = g.multi_op(
            "LinearAttention",
            moves.queries,
            moves.keys,
            self._padded(moves.values),
            state,
            *(each for each in moves[3:] if each),
            outputs=2,
            domain=CONTRIB,
            q_num_heads=self._keys,
            kv_num_heads=self._heads,
            update_rule="gated_delta" if moves.rates else "gated",
            scale=1.0,
        )
        first = g.op("Slice", behind, g.ints(0), g.ints(1), g.ints(0))
        g.output(f"new.{name}", g.op("Reshape", first, g.ints(*dims)), FLOAT, dims)
        if self._columns == self._size:
            return y
        y = g.op("Reshape", y, g.ints(0, 0, self._heads, self._columns))
        y = g.op("Slice", y, g.ints(0), g.ints(self._size), g.ints(3))
        return g.op("Reshape", y, g.ints(0, 0, self._heads * self._size))

    def _padded(self, values: str) -> str:
        """Emits values with zeros up to the columns of a state."""
        g = self._graph
        missing = self._columns - self._size
        if not missing:
            return values
        values = g.op("Reshape", values, g.ints(0, 0, self._heads, self._size))
        values = g.op("Pad", values, g.ints(*[0] * 7, missing))
        return g.op("Reshape", values, g.ints(0, 0, self._heads * self._columns))

    def _by_row(self, x: str) -> str:
        """Emits the values of the call's rows, [S, heads * size], of those on paths."""
        x = self._graph.op("Reshape", x, self._graph.ints(-1, self._heads * self._size))
        return self._graph.op("Gather", x, self._told("places", TensorProto.INT64, "S"), axis=0)

    def _batch(self) -> str:
        g = self._graph
        paths = g.op("Shape", self._told("paths", TensorProto.INT64, "B", "T"), start=0, end=1)
        return g.op("Concat", paths, g.ints(1, 1, 1), axis=0)

    def _steps_of(self, gates: Sequence[str], outputs: int) -> list[str]:
        """Emits decays, and what a rate is, of steps and perhaps rates."""
        steps, *rates = gates
        parts = [self._low.value(self._names[each]) for each in ("bias", "factor")]
        return self._graph.multi_op(
            "LinearAttentionGate", steps, *parts, *rates, outputs=outputs, domain=CONTRIB
        )

    def _told(self, name: str, kind: int, *dims: int | str) -> str:
        """Declares an input that says where paths lead, of all layers with such convolutions."""
        name = f"{name}.{len(self._low.array(self._names['weight']))}"
        return self._low.once(name, lambda: self._graph.input(name, kind, dims))


class FusedGatedDelta(FusedRecurrence):
    """See `runtime/kernels/gated_delta.cc`."""

    inputs = GATED_DELTA

    def emitted(self) -> str:
        """See `RecurrentLayer`."""
        g = self._graph
        x = self._low.value(self._names["x"])
        sizes = self._channels, self._heads, self._decays
        values = self._heads * self._size
        own, gate, rates, steps = self._apart(x, self._channels, values, *sizes[1:])
        kept = g.op("Concat", own, rates, steps, axis=1)
        mixed, (rates, steps) = self._along_paths(kept, *sizes)
        width = self._keys * self._key_size
        queries, keys, mixed = self._apart(mixed, width, width, values)
        queries = self._of_heads(queries, self._key_size**-0.5)
        keys = self._of_heads(keys, 1.0)
        if self._decay_size == 1:
            decays, rates = self._steps_of([steps, rates], 2)
        else:  # the operator has as many of both
            (decays,) = self._steps_of([steps], 1)
            rates = g.op("Sigmoid", rates)
        y = self._by_row(self._moved(Moves(queries, keys, mixed, decays, rates)))
        weight = self._low.value(self._names["norm"])
        return g.op(
            "GatedRMSNorm",
            y,
            weight,
            gate,
            domain=CONTRIB,
            epsilon=self._eps,
            activation=self._activation,
        )

    def _of_heads(self, x: str, length: float) -> str:
        """Emits keys or queries of this length, side by side."""
        g = self._graph
        x = g.op("Reshape", x, g.ints(0, 0, self._keys, self._key_size))
        return g.op("Reshape", self._of_length(x, length), g.ints(0, 0, -1))


class FusedStateSpace(FusedRecurrence):
    """See `runtime/kernels/state_space.cc`."""

    inputs = STATE_SPACE

    def emitted(self) -> str:
        """See `RecurrentLayer`."""
        g = self._graph
        values = self._heads * self._size
        sizes = self._channels, self._heads
        gate, kept = self._apart(self._low.value(self._names["x"]), values, sum(sizes))
        mixed, (steps,) = self._along_paths(kept, *sizes)
        width = self._keys * self._key_size
        mixed, keys, queries = self._apart(mixed, values, width, width)
        (decays,) = self._steps_of([steps], 1)
        steps = g.op("Softplus", g.op("Add", steps, self._low.value(self._names["bias"])))
        stepped = g.op("Reshape", mixed, g.ints(0, 0, self._heads, self._size))
        stepped = g.op("Mul", stepped, g.op("Unsqueeze", steps, g.ints(3)))
        stepped = g.op("Reshape", stepped, g.ints(0, 0, values))
        y = self._moved(Moves(queries, keys, stepped, decays))
        skip = g.constant(np.repeat(self._low.array(self._names["skip"]), self._size), np.float32)
        y = self._by_row(g.op("Add", y, g.op("Mul", mixed, skip)))
        return self._normed_by_group(y, gate)
