"""Which keys the rows of a call see, as what is added to their scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgespec.bundle import SIGHT
from edgespec.runtime.arrays import Array, Floats, Ids
from edgespec.runtime.engines.portable.places import Places

_OFF = np.float32(-3e4)  # far below any score; engines may compute in half precision


@dataclass(frozen=True)
class Bias:
    """What rows see of others.

    Attributes:
        window: positions that a row sees, its own included; None: all.
        sight: whether a row of a block sees what the block's last one sees.
        written: whether their own keys and values are those of new rows; else they lie in the pool
            already, where they are said to be written.
        chunked: whether a row sees those of its chunk of the text alone, of `window` positions.
    """

    window: int | None = None
    sight: bool = False
    written: bool = True
    chunked: bool = False


_USUAL = Bias()


class Visibility:
    """What each row of a call sees: the committed slots of its sequence, its ancestors and itself.

    Args:
        feeds: inputs of a native graph, see `docs/graph.md`.
    """

    def __init__(self, feeds: Mapping[str, Array]) -> None:
        self._write = feeds["write"]
        self._context = feeds["context"]
        self._owners = feeds["sequence"]
        self._starts = feeds["starts"].tolist()
        parents = feeds["parent"].tolist()
        self._positions = np.zeros(len(parents), np.int64)
        self._tree = np.eye(len(parents), dtype=bool)  # by row: its ancestors and itself
        for row, (parent, owner) in enumerate(zip(parents, self._owners.tolist(), strict=True)):
            if parent < 0:
                self._positions[row] = self._starts[owner + 1] - self._starts[owner]
            else:
                self._positions[row] = self._positions[parent] + 1
                self._tree[row, : parent + 1] = self._tree[parent, : parent + 1]
        seeing = np.arange(len(parents)) + np.maximum(feeds.get(SIGHT, 0), 0)
        self._trees = {False: self._tree, True: self._tree[seeing]}

    def bias(self, part: slice, size: int, capacity: int, kind: Bias = _USUAL) -> Floats:
        """Returns what is added to the scores of consecutive rows.

        It is [size, capacity + size], or [size, capacity] where rows are not written. Rows before
        them were written to their slots by then. Rows of padding see what the last row sees, and
        nobody sees them.

        Args:
            part: the rows.
            size: number of rows with those of padding.
            capacity: number of slots.
            kind: what they see.
        """
        bias = np.full((size, capacity + size), _OFF, np.float32)
        if kind.written:
            self._show(bias, part, kind, np.arange(capacity), capacity)
            return bias
        count = part.stop - part.start
        self._show_sequences(bias, part, kind, np.arange(capacity))
        bias[range(count), self._write[part]] = 0
        bias[count:] = bias[count - 1]
        return bias[:, :capacity].copy()

    def by_place(self, part: slice, size: int, places: Places, kind: Bias = _USUAL) -> Floats:
        """Returns what is added to the scores of consecutive rows, which have their places.

        It is [size, places], else see `bias`.
        """
        bias = np.full((size, places.count), _OFF, np.float32)
        first = int(places.of_slots[self._write[part.start]])
        self._show(bias, part, kind, places.of_slots, first)
        return bias

    def _show(self, bias: Floats, part: slice, kind: Bias, columns: Ids, first: int) -> None:
        """Shows rows what they see: columns of slots, and from the first on the rows themselves."""
        count = part.stop - part.start
        self._show_sequences(bias, part, kind, columns)
        positions = self._positions[part]
        seen = self._trees[kind.sight][part] & _within(positions, self._positions, kind)
        earlier = columns[self._write[: part.start]]
        bias[:count, earlier] = np.where(seen[:, : part.start], 0, _OFF)
        bias[:count, first : first + count] = np.where(seen[:, part], 0, _OFF)
        bias[count:] = bias[count - 1]

    def _show_sequences(self, bias: Floats, part: slice, kind: Bias, columns: Ids) -> None:
        """Shows rows the slots of their sequences."""
        positions = self._positions[part]
        owners = self._owners[part]
        for owner in range(owners[0], owners[-1] + 1):  # rows of a sequence lie together
            rows = slice(*np.searchsorted(owners, (owner, owner + 1)))
            slots = self._context[self._starts[owner] : self._starts[owner + 1]]
            seen = _within(positions[rows], np.arange(len(slots)), kind)
            bias[rows, columns[slots]] = np.where(seen, 0, _OFF)


def _within(positions: Array, others: Array, kind: Bias) -> Array:
    """Returns which of the other positions are within the windows of these, [n, m] bool."""
    window = kind.window
    if window is None:
        return np.ones((len(positions), len(others)), bool)
    first = positions - positions % window if kind.chunked else positions - window + 1
    seen: Array = others >= first[:, None]
    return seen
