"""Tensors that a description names, and files hold as rows of other tensors or in another order."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import CheckpointError
from edgespec.models.formats.tensors import BlockRows, check_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from edgespec.models.formats.tensors import Blocks, TensorSource


@dataclass(frozen=True, eq=False)
class TensorRows:
    """Some rows of a stored tensor.

    Attributes:
        stored: Name of the stored tensor.
        rows: [n] int64, numbers of its rows in the order of the part's; neighbours in the part
            should lie near each other.
        total: Number of rows of the stored tensor.
        turned: Whether the part's columns are these rows.
        vector: Whether the part is a vector, of the numbers of these rows.
    """

    stored: str
    rows: NDArray[np.int64]
    total: int
    turned: bool = False
    vector: bool = False


@dataclass(frozen=True, eq=False)
class Parts:
    """A `TensorSource` that gives parts of stored tensors of their own.

    Of a stored tensor all of whose rows are in parts, only these are named.

    Attributes:
        tensors: The stored tensors.
        parts: Parts of them by name; a part may have the name of the tensor that it is made of.
    """

    tensors: TensorSource
    parts: Mapping[str, TensorRows]

    @property
    def names(self) -> frozenset[str]:
        """See `TensorSource`."""
        left = {part.stored: part.total for part in self.parts.values()}
        for part in self.parts.values():
            left[part.stored] -= len(part.rows)
        whole = {name for name, rows in left.items() if rows <= 0}
        return (self.tensors.names - whole) | self.parts.keys()

    @property
    def nbytes(self) -> int:
        """See `TensorSource`; parts do not count again."""
        return self.tensors.nbytes

    def place(self, name: str) -> str:
        """See `TensorSource`."""
        return self.tensors.place(self._stored(name))

    def shape(self, name: str) -> tuple[int, ...]:
        """See `TensorSource`.

        Raises:
            CheckpointError: Also if the stored tensor has another number of rows than its parts.
        """
        shape = self.tensors.shape(self._stored(name))
        part = self.parts.get(name)
        if part is None:
            return shape
        if shape[0] != part.total:
            raise CheckpointError(
                f"{self.place(name)}: {part.stored} has {shape[0]} rows, config.json asks for "
                f"{part.total}: use config and weights of the same model"
            )
        if part.vector:
            return (len(part.rows) * math.prod(shape[1:]),)
        own = (len(part.rows), *shape[1:])
        return own[::-1] if part.turned else own

    def read(self, name: str) -> NDArray[np.float32]:
        """See `TensorSource`."""
        if name in self.parts:
            return self.read_rows(name, 0, self.shape(name)[0])
        return self.tensors.read(name)

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """See `TensorSource`."""
        if name not in self.parts:
            return self.tensors.read_rows(name, start, stop)
        part = self.parts[name]
        if part.vector:
            check_rows(name, start, stop, self.shape(name)[0])
            return self.tensors.read(part.stored)[part.rows].reshape(-1)[start:stop]
        if part.turned:
            check_rows(name, start, stop, self.shape(name)[0])
            whole = Parts(self.tensors, {name: replace(part, turned=False)}).read(name)
            return np.ascontiguousarray(whole[:, start:stop].T)
        first, last, order = self._span(name, start, stop)
        return self.tensors.read_rows(self._stored(name), first, last)[order]

    def blocks(self, name: str) -> Blocks | None:
        """See `TensorSource`; parts that are turned, or vectors, are given as floats."""
        return None if self._reshaped(name) else self.tensors.blocks(self._stored(name))

    def read_blocks(self, name: str, start: int, stop: int) -> BlockRows:
        """See `TensorSource`."""
        if name not in self.parts:
            return self.tensors.read_blocks(name, start, stop)
        first, last, order = self._span(name, start, stop)
        rows = self.tensors.read_blocks(self._stored(name), first, last)
        zeros = None if rows.zeros is None else rows.zeros[order]
        return BlockRows(rows.levels[order], rows.scales[order], zeros)

    def encoding(self, name: str) -> str | None:
        """See `TensorSource`; parts that are turned, or vectors, are given as floats."""
        return None if self._reshaped(name) else self.tensors.encoding(self._stored(name))

    def read_encoded(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """See `TensorSource`."""
        if name not in self.parts:
            return self.tensors.read_encoded(name, start, stop)
        first, last, order = self._span(name, start, stop)
        return self.tensors.read_encoded(self._stored(name), first, last)[order]

    def _reshaped(self, name: str) -> bool:
        return name in self.parts and (self.parts[name].turned or self.parts[name].vector)

    def _stored(self, name: str) -> str:
        return self.parts[name].stored if name in self.parts else name

    def _span(self, name: str, start: int, stop: int) -> tuple[int, int, NDArray[np.int64]]:
        """Returns start and stop of the stored rows around rows of a part, and theirs in these.

        They are read at once, since rows of a part lie near each other: many calls for a row each
        would take longer.
        """
        rows = self.parts[name].rows
        check_rows(name, start, stop, len(rows))
        rows = rows[start:stop]
        first = int(rows.min())
        return first, int(rows.max()) + 1, rows - first


def stacked(stored: str, sizes: Mapping[str, int]) -> dict[str, TensorRows]:
    """Returns the parts of a tensor that lie one below the other.

    Args:
        stored: Name of the tensor.
        sizes: Name and number of rows of each part, in order.
    """
    parts = dict[str, TensorRows]()
    start = 0
    total = sum(sizes.values())
    for name, size in sizes.items():
        parts[name] = TensorRows(stored, np.arange(start, start + size), total)
        start += size
    return parts
