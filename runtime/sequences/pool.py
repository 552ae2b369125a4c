"""The cache of a model: a pool of slots for keys and values, counted by reference.

A slot holds the keys and values of one row in all layers. Nothing is ever moved: sequences are
lists of slots, and share a beginning by sharing its slots (vLLM's paged attention with pages of one
row: Kwon et al., 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from edgespec.errors import MemoryLimitError
from edgespec.runtime.arrays import Array

if TYPE_CHECKING:
    from edgespec.bundle import PoolShape

_CHUNK = 1024  # slots that a pool grows by, at least
_TYPES: dict[str, type[np.number[Any]]] = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8}


class KVPool:
    """Slots for rows of any number of sequences.

    Args:
        shapes: the layers that keep keys and values.
        kv: number format, fp32, fp16 or int8.
        limit: largest number of slots; None for any.

    Attributes:
        arrays: a graph's inputs: `pool.L` [2, kv_heads, capacity, dim] for each layer L, and
            `scales.L` [2, kv_heads, capacity] float32 of int8. New ones whenever the pool grows.
        capacity: number of slots.
        limit: see above.
        evict: is asked to free at least so many slots before the limit would be exceeded.
    """

    def __init__(self, shapes: Sequence[PoolShape], kv: str, limit: int | None = None) -> None:
        self.limit = limit
        self.evict: Callable[[int], None] = _nothing
        self._parts = _parts(shapes, kv)
        self.arrays: dict[str, Array] = {}
        self.capacity = 0
        self._counts: list[int] = []  # by slot: references to it
        self._free: list[int] = []  # the next one last
        self._grow(1)

    @staticmethod
    def slot_bytes(shapes: Sequence[PoolShape], kv: str) -> int:
        """Returns the bytes of a slot in all layers."""
        sizes = _parts(shapes, kv).values()
        return sum(prod(heads + width) * np.dtype(kind).itemsize for heads, width, kind in sizes)

    @property
    def used(self) -> int:
        """Number of slots that are in use."""
        return self.capacity - len(self._free)

    def take(self, count: int) -> list[int]:
        """Returns free slots, each with one reference; the pool grows if there are too few.

        Raises:
            MemoryLimitError: if it must not grow so far.
        """
        if self.limit is not None and self.used + count > self.limit:
            self.evict(self.used + count - self.limit)
        if count > len(self._free):
            self._grow(count - len(self._free))
        taken = [self._free.pop() for _ in range(count)]
        for slot in taken:
            self._counts[slot] = 1
        return taken

    def share(self, slots: Iterable[int]) -> None:
        """Adds a reference to each slot."""
        for slot in slots:
            self._counts[slot] += 1

    def free(self, slots: Sequence[int]) -> None:
        """Drops a reference to each slot; those without any are free again."""
        counts = self._counts
        for slot in reversed(slots):  # so that they are taken in the same order again
            counts[slot] -= 1
            if not counts[slot]:
                self._free.append(slot)

    def references(self, slot: int) -> int:
        """Returns the number of references to a slot; 0 if it is free."""
        return self._counts[slot]

    def read(self, slots: Sequence[int]) -> dict[str, Array]:
        """Returns copies of what n slots hold: the arrays, with the n slots as their third axis."""
        return {name: array[:, :, slots] for name, array in self.arrays.items()}

    def write(self, slots: Sequence[int], rows: Mapping[str, Array]) -> None:
        """Lets slots hold what `read` returned.

        Raises:
            ValueError: if the rows are those of another kind of pool, or of another number.
        """
        for name, (heads, width, kind) in self._parts.items():
            array = rows.get(name)
            shape = (*heads, len(slots), *width)
            if array is None or array.dtype != kind or array.shape != shape:
                raise ValueError(f"{name} does not fit")
        for name, array in self.arrays.items():
            array[:, :, slots] = rows[name]

    def _grow(self, more: int) -> None:
        before, chunks = self.capacity, -(-more // _CHUNK)
        after = before + max(chunks, before // 2 // _CHUNK) * _CHUNK
        if self.limit is not None:
            after = min(after, self.limit)
        if after < before + more:
            raise MemoryLimitError(
                f"the KV cache has room for {self.limit} rows, and {before + more} are needed: "
                "raise --memory, lower --context, or make fewer texts at once"
            )
        for name, (heads, width, kind) in self._parts.items():
            array = np.zeros((*heads, after, *width), kind)
            if before:
                array[:, :, :before] = self.arrays[name]
            self.arrays[name] = array
        self.capacity = after
        self._counts += [0] * (after - before)
        # The lowest first: rows of a sequence lie together, and untouched memory stays untouched.
        self._free[:0] = range(after - 1, before - 1, -1)


def _nothing(_: int) -> None:
    """Evicts nothing."""


_Parts = dict[str, tuple[tuple[int, ...], tuple[int, ...], type[np.number[Any]]]]


def _parts(shapes: Sequence[PoolShape], kv: str) -> _Parts:
    """Returns the arrays by name: their dimensions before and behind the slots, and their type."""
    parts: _Parts = {
        f"pool.{each.layer}": ((2, each.kv_heads), (each.dim,), _TYPES[kv]) for each in shapes
    }
    if kv == "int8":
        parts |= {f"scales.{each.layer}": ((2, each.kv_heads), (), np.float32) for each in shapes}
    return parts
