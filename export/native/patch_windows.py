"""Emits windows of patches: squares of a picture, of which the last ones may reach beyond it."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from edgespec.export.native.graph import NativeGraphBuilder
from edgespec.models.vision.grid import PatchWindows


class WindowedPatches:
    """Puts rows of patches into windows, and back.

    Args:
        native: receives the nodes.
        windows: the description.
        factor: so many patches by so many are a square; squares lie one behind the other.
        lines: [1] int64, lines of patches.
        columns: [1] int64, their columns.

    Attributes:
        mask: [windows, patches of one] int32, 0 for those beyond the picture.
    """

    def __init__(
        self,
        native: NativeGraphBuilder,
        windows: PatchWindows,
        factor: int,
        lines: str,
        columns: str,
    ) -> None:
        g = native.graph
        self._graph = g
        self._square = factor**2
        self._side = windows.side
        side = g.ints(self._side)
        self._size = g.op(
            "Concat", *(g.op("Div", n, g.ints(factor)) for n in (lines, columns)), axis=0
        )
        whole = g.op("Add", self._size, g.ints(self._side - 1))
        self._counts = g.op("Div", whole, side)  # windows from the top, and from the left
        self._padded = g.op("Mul", self._counts, side)
        missing = g.op("Sub", self._padded, self._size)
        self._pads = g.op("Concat", g.ints(0, 0, 0), missing, g.ints(0), axis=0)
        shape = g.op("Concat", self._size, g.ints(self._square), axis=0)
        ones = g.op("Expand", g.constant(1.0, np.float32), shape)
        mask = self._parted(ones, 1)
        self.mask = g.op("Cast", g.op("Squeeze", mask, g.ints(2)), to=TensorProto.INT32)

    def parted(self, x: str, width: int) -> str:
        """Emits rows of patches, [patches, width], as [windows, patches of one, width]."""
        shape = self._graph.op("Concat", self._size, self._graph.ints(self._square * width), axis=0)
        return self._parted(self._graph.op("Reshape", x, shape), width)

    def joined(self, x: str, width: int) -> str:
        """Emits what `parted` gave as it was before."""
        g = self._graph
        wide = self._square * width
        first, second = g.multi_op("Split", self._counts, outputs=2, axis=0, num_outputs=2)
        side = g.ints(self._side)
        apart = g.op("Concat", first, second, side, side, g.ints(wide), axis=0)
        x = g.op("Transpose", g.op("Reshape", x, apart), perm=[0, 2, 1, 3, 4])
        x = g.op("Reshape", x, g.op("Concat", self._padded, g.ints(wide), axis=0))
        x = g.op("Slice", x, g.ints(0, 0), self._size, g.ints(0, 1))
        return g.op("Reshape", x, g.ints(-1, width))

    def _parted(self, x: str, width: int) -> str:
        """Emits [lines, columns, patches * width] of squares in windows."""
        g = self._graph
        wide = self._square * width
        first, second = g.multi_op("Split", self._counts, outputs=2, axis=0, num_outputs=2)
        side = g.ints(self._side)
        apart = g.op("Concat", first, side, second, side, g.ints(wide), axis=0)
        x = g.op("Reshape", g.op("Pad", x, self._pads), apart)
        x = g.op("Transpose", x, perm=[0, 2, 1, 3, 4])
        return g.op("Reshape", x, g.ints(-1, self._side**2 * self._square, width))
