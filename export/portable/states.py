"""What rows add to states, and read of them: the gated delta rule, and state spaces.

What a row of the gated delta rule adds depends on what its ancestors add, which is a triangular
system of equations.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from edgespec.bundle import RECURRENT_ROWS
from edgespec.export.portable.lowering import Lowering, silu
from edgespec.export.portable.recurrent import (
    GATED_DELTA,
    STATE_SPACE,
    Held,
    StandardRecurrence,
)


class StandardGatedDelta(StandardRecurrence):
    """See `runtime/kernels/gated_delta.cc`."""

    inputs = GATED_DELTA

    def __init__(self, low: Lowering, node: NodeProto) -> None:
        super().__init__(low, node)
        self._rates = ""

    def emitted(self) -> str:
        """See `StandardRecurrence`."""
        g = self._graph
        values = self._heads * self._size
        x = self._low.value(self._names["x"])
        sizes = self._channels, values, self._heads, self._decays
        own, gate, rates, steps = self._apart(x, *sizes)
        self._rates = self._of_heads(g.op("Sigmoid", rates))
        width = self._parts[1]
        queries, keys, mixed = self._apart(self._mixed(own), width, width, values)
        keys, queries = (self._by_head(each, 1, self._key_size) for each in (keys, queries))
        keys = self._of_length(keys, 1.0)
        queries = self._of_length(queries, self._key_size**-0.5)
        y = self._result(own, keys, queries, self._values(mixed), self._steps(steps))
        y = g.op("Reshape", y, g.ints(-1, self._heads, self._size))
        weight = self._low.value(self._names["norm"])
        y = g.op("RMSNormalization", y, weight, axis=-1, epsilon=self._eps)
        gate = g.op("Sigmoid", gate) if self._activation == "sigmoid" else silu(self._low, gate)
        return g.op("Mul", g.op("Reshape", y, g.ints(-1, values)), gate)

    def _added(self, held: Held, values: str) -> str:
        """See `StandardRecurrence`: rate (v - k S), where S has what the row's ancestors add."""
        g = self._graph
        rows, recent = self._low.once("sizes", self._sizes)
        alike = self._alike(held.keys, held)
        lengths = self._low.once("lengths", lambda: g.op("Concat", recent, rows, axis=0))
        old, new = g.multi_op("Split", alike, lengths, outputs=2, axis=3)
        known = g.op("Add", self._of_state(held.keys, held), g.op("MatMul", old, held.added))
        missing = g.op("Mul", g.op("Sub", values, known), self._rates)
        return self._solved(g.op("Mul", new, self._rates), missing)

    def _solved(self, factors: str, values: str) -> str:
        """Emits X of X + factors X = values, of which factors below the diagonal alone count.

        The inverse of twice as many rows has two of half as many on its diagonal, and below them
        their product with what is between. Unlike a series it is as exact as solving row by row.
        """
        g = self._graph
        inverse, *parts = self._low.once("parts", self._triangles)
        for number, part in enumerate(parts):
            between = g.op("Mul", factors, part)
            if number:
                between = g.op("MatMul", inverse, g.op("MatMul", between, inverse))
            inverse = g.op("Sub", inverse, between)
        return g.op("MatMul", inverse, values)

    def _triangles(self) -> list[str]:
        """Emits for S rows the unit matrix, and ones where pairs of halves of each size meet."""
        g = self._graph
        rows, _ = self._low.once("sizes", self._sizes)
        numbers = np.arange(RECURRENT_ROWS)
        found: list[npt.ArrayLike] = [np.eye(RECURRENT_ROWS)]
        size = 1
        while size < RECURRENT_ROWS:
            same = np.equal.outer(numbers // (2 * size), numbers // (2 * size))
            second = numbers // size % 2
            found.append(same & np.greater.outer(second, second))
            size *= 2
        ends = g.op("Concat", rows, rows, axis=0)
        start, axes = g.ints(0, 0), g.ints(0, 1)
        return [g.op("Slice", g.constant(e, np.float32), start, ends, axes) for e in found]

    def _sizes(self) -> tuple[str, str]:
        """Emits the number of rows, and that of recent ones."""
        g = self._graph
        recent = g.op("Shape", self._names["rows"], start=0, end=1)
        return g.op("Shape", self._low.value(self._names["x"]), start=0, end=1), recent


class StandardStateSpace(StandardRecurrence):
    """See `runtime/kernels/state_space.cc`."""

    inputs = STATE_SPACE

    def emitted(self) -> str:
        """See `StandardRecurrence`."""
        g = self._graph
        values = self._heads * self._size
        x = self._low.value(self._names["x"])
        gate, own, steps = self._apart(x, values, self._parts[0], self._heads)
        width = self._parts[1]
        mixed, keys, queries = self._apart(self._mixed(own), values, width, width)
        keys, queries = (self._by_head(each, 1, self._key_size) for each in (keys, queries))
        steps = self._steps(steps)
        stepped = g.op("Mul", self._values(mixed), self._of_heads(steps))
        y = self._result(own, keys, queries, stepped, steps)
        skip = g.constant(np.repeat(self._low.array(self._names["skip"]), self._size), np.float32)
        y = g.op("Add", y, g.op("Mul", mixed, skip))
        return self._normed_by_group(y, gate)

    def _added(self, held: Held, values: str) -> str:
        """See `StandardRecurrence`: step v."""
        return values
