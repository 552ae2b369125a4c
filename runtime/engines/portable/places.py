"""Where rows lie in caches that are written in order, behind all rows that are there.

A pool gives rows any free slots; the operators that fused graphs have attention from append. So a
slot's row lies at a place, which changes whenever the slot is written anew. Places whose rows are
no longer wanted are holes, until rows are moved together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgespec.runtime.arrays import Ids, spare_places

_NONE = -1


class Places:
    """The places of a pool's slots.

    Attributes:
        count: number of places; the first `end` are in use.
        end: see above.
        of_slots: [slots] int64, the place of each slot's row; -1: it has none.
    """

    def __init__(self) -> None:
        self.count = 0
        self.end = 0
        self.of_slots: Ids = np.empty(0, np.int64)
        self._slots: Ids = np.empty(0, np.int64)  # by place; -1: a hole

    def grow(self, slots: int) -> None:
        """Makes room for so many slots."""
        self.count = slots + spare_places(slots)
        self.of_slots = _longer(self.of_slots, slots)
        self._slots = _longer(self._slots, self.count)

    def free(self, slots: Ids) -> None:
        """Makes holes where the rows of these slots lie."""
        places = self.of_slots[slots]
        self._slots[places[places >= 0]] = _NONE
        self.of_slots[slots] = _NONE
        while self.end and self._slots[self.end - 1] < 0:
            self.end -= 1

    def moved_together(self) -> Ids:
        """Leaves no holes; returns [places] from where each place's row comes."""
        kept = np.flatnonzero(self._slots >= 0)
        order = np.arange(self.count)
        order[: len(kept)] = kept
        slots = self._slots[kept]
        self.end = len(kept)
        self._slots[: self.end] = slots
        self._slots[self.end :] = _NONE
        self.of_slots[slots] = np.arange(self.end)
        return order

    def append(self, slots: Ids) -> int:
        """Gives slots without rows the places behind all others; returns the first."""
        first = self.end
        self.end += len(slots)
        self._slots[first : self.end] = slots
        self.of_slots[slots] = np.arange(first, self.end)
        return first


@dataclass(eq=False)
class Cache:
    """Keys and values of a layer, in the order in which rows were written.

    Attributes:
        keys: [1, kv_heads, places, dim], an array or a device's tensor.
        values: likewise.
        places: those of the pool.
    """

    keys: Any
    values: Any
    places: Places


def cache_tensors(pools: Mapping[str, Any]) -> dict[str, Any]:
    """Returns keys and values of the caches among pools, by the names of a graph's inputs."""
    found = dict[str, Any]()
    for name, cache in pools.items():
        if isinstance(cache, Cache):
            layer = name.removeprefix("pool.")
            found |= {f"keys.{layer}": cache.keys, f"values.{layer}": cache.values}
    return found


def _longer(array: Ids, count: int) -> Ids:
    longer = np.full(count, _NONE, np.int64)
    longer[: len(array)] = array
    return longer
