"""Where the texts of a call are in its rows: one text, or several side by side.

A call's rows S are those of all its texts, one text after the other; products see no more of texts
than that. Attention sees rows by text: [T, L], texts and the most rows of one of them.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from onnx import TensorProto

from edgespec.bundle.caches import TEXT_PLACES, TEXT_ROWS
from edgespec.export.components.graph import GraphBuilder, Input

_INT64 = TensorProto.INT64


class Texts(Protocol):
    """How attention tells the texts of a call apart.

    Attributes:
        dims: symbols of the dimensions that come before those of a head: none, or T.
        rows: symbol of the dimension of a text's rows.
    """

    dims: tuple[str, ...]
    rows: str

    def __init__(self, graph: GraphBuilder, declare: Input) -> None: ...

    def part(self, x: str) -> str:
        """Brings rows [S, width] to the form that attention has: [T, L, width]."""

    def join(self, x: str, width: int) -> str:
        """Brings rows [T, L, …] of `width` numbers back to [S, width]."""

    def window(self, cache: str, rows: str, heads: int, width: int) -> str:
        """Takes rows of a cache [T, KV, C, width], of each text those at its `rows`."""

    def swapped(self, x: str) -> str:
        """Exchanges the last two dimensions of [T, heads, L, hd]."""

    def turned(self, x: str) -> str:
        """Exchanges rows and heads: [T, L, heads, hd] becomes [T, heads, L, hd], and back."""

    def shape(self, *sizes: int) -> str:
        """Returns a shape for Reshape that leaves T, and whatever is 0, as they are."""

    def by_head(self, x: str) -> str:
        """Adds a dimension of heads to what is the same for all of them: [T, 1, L, …]."""


class OneText:
    """All rows are of one text: the dimension T is left out, and L is S."""

    dims: tuple[str, ...] = ()
    rows = "S"

    def __init__(self, graph: GraphBuilder, declare: Input) -> None:
        self._graph = graph

    def part(self, x: str) -> str:
        """See `Texts`."""
        return x

    def join(self, x: str, width: int) -> str:
        """See `Texts`."""
        return self._graph.op("Reshape", x, self._graph.ints(-1, width))

    def window(self, cache: str, rows: str, heads: int, width: int) -> str:
        """See `Texts`."""
        return self._graph.op("Gather", cache, rows, axis=1)

    def swapped(self, x: str) -> str:
        """See `Texts`."""
        return self._graph.op("Transpose", x, perm=[0, 2, 1])

    def turned(self, x: str) -> str:
        """See `Texts`."""
        return self._graph.op("Transpose", x, perm=[1, 0, 2])

    def shape(self, *sizes: int) -> str:
        """See `Texts`."""
        return self._graph.ints(*sizes)

    def by_head(self, x: str) -> str:
        """See `Texts`."""
        return self._graph.op("Unsqueeze", x, self._graph.ints(0))


class SeveralTexts:
    """Rows of several texts, which two inputs lead to their places and back.

    * `text_rows` [T, L]: the row in each place; places that a text does not need repeat a row.
    * `text_places` [S]: the place of each row, counted over all texts.
    """

    dims: tuple[str, ...] = ("T",)
    rows = "L"

    def __init__(self, graph: GraphBuilder, declare: Input) -> None:
        self._graph, self._declare = graph, declare
        self._windows: dict[tuple[str, int], str] = {}

    def part(self, x: str) -> str:
        """See `Texts`."""
        rows = self._declare(TEXT_ROWS, _INT64, "T", "L")
        return self._graph.op("Gather", x, rows, axis=0)

    def join(self, x: str, width: int) -> str:
        """See `Texts`."""
        g = self._graph
        flat = g.op("Reshape", x, g.ints(-1, width))
        return g.op("Gather", flat, self._declare(TEXT_PLACES, _INT64, "S"), axis=0)

    def window(self, cache: str, rows: str, heads: int, width: int) -> str:
        """See `Texts`."""
        g = self._graph
        if (rows, heads) not in self._windows:
            self._windows[rows, heads] = self._places(cache, rows, heads)
        flat = g.op("Reshape", cache, g.ints(-1, width))
        return g.op("Gather", flat, self._windows[rows, heads], axis=0)

    def _places(self, cache: str, rows: str, heads: int) -> str:
        """Returns [T, KV, W], where the rows are among those of all texts and heads.

        Layers with the same mask share it, since their caches have the same capacity. GatherND
        would need no such places, but is slower.
        """
        g = self._graph
        shape = g.op("Shape", cache)
        capacity = g.op("Gather", shape, g.constant(2, np.int64), axis=0)
        sizes = g.op("Slice", shape, g.ints(0), g.ints(3), g.ints(0))
        every = g.op("ReduceProd", sizes, keepdims=0)
        firsts = g.op("Range", g.constant(0, np.int64), every, capacity)
        firsts = g.op("Reshape", firsts, g.ints(-1, heads, 1))
        return g.op("Add", firsts, g.op("Unsqueeze", rows, g.ints(1)))

    def swapped(self, x: str) -> str:
        """See `Texts`."""
        return self._graph.op("Transpose", x, perm=[0, 1, 3, 2])

    def turned(self, x: str) -> str:
        """See `Texts`."""
        return self._graph.op("Transpose", x, perm=[0, 2, 1, 3])

    def shape(self, *sizes: int) -> str:
        """See `Texts`."""
        return self._graph.ints(0, *sizes)

    def by_head(self, x: str) -> str:
        """See `Texts`."""
        return self._graph.op("Unsqueeze", x, self._graph.ints(1))
