"""Caches of several texts side by side in host memory, as calls over several texts read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgespec.bundle.caches import CacheGroup
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.base import StageFile
from edgespec.runtime.engines.grouped import GroupedCache
from edgespec.runtime.engines.host import HostRows, return_freed_memory
from edgespec.runtime.shapes import kept_rows


class HostSeats:
    """Caches of several texts, which lie in one array for each group of layers.

    Args:
        stage: a stage whose calls hold several texts.
        count: number of texts.
        capacity: C, in rows of a group that keeps them all; the same for all texts.

    Attributes:
        capacity: see above; it grows.
    """

    def __init__(self, stage: StageFile, count: int, capacity: int) -> None:
        self.capacity = capacity
        self._groups = [_Shared(group, count, capacity) for group in stage.cache_groups]
        self._seats = [
            SeatCache(self, seat, [_Seat(group, seat) for group in self._groups])
            for seat in range(count)
        ]
        self._rows = dict[range, SeatedRows]()

    def seat(self, number: int) -> SeatCache:
        """Returns the cache of one text, from 0 on."""
        return self._seats[number]

    def among(self, seats: range) -> SeatedRows:
        """Returns the caches of consecutive texts, for a call."""
        if seats not in self._rows:
            views = dict[str, Array]()
            for group in self._groups:
                views |= group.views(seats)
            self._rows[seats] = SeatedRows(views)
        return self._rows[seats]

    def grow(self, capacity: int) -> None:
        """Enlarges the caches to `capacity` rows and keeps their content."""
        self._rows.clear()  # a view would keep the old memory
        return_freed_memory()
        self.capacity = capacity
        for group in self._groups:
            group.grow(capacity)


class SeatedRows:
    """The caches that a call reads.

    Attributes:
        views: the stage's inputs by name, [T, KV, C, hd] each; another dict after every growth.
    """

    def __init__(self, views: Mapping[str, Array]) -> None:
        self.views = views


class SeatCache(GroupedCache["_Seat"]):
    """The cache of one of the texts; see `Cache`.

    Args:
        seats: all caches.
        number: which one this is.
        groups: its part of the cache of each group of layers.
    """

    recurrence = None

    def __init__(self, seats: HostSeats, number: int, groups: Sequence[_Seat]) -> None:
        super().__init__(groups)
        self._seats, self._number = seats, number

    @property
    def capacity(self) -> int:
        """See `Cache`; it is that of all seats."""
        return self._seats.capacity

    @property
    def views(self) -> Mapping[str, Array]:
        """The stage's inputs by name, as for a call over this text alone."""
        return self._seats.among(range(self._number, self._number + 1)).views

    def grow(self, capacity: int) -> None:
        """See `Cache`; all seats grow."""
        self._seats.grow(capacity)


class _Shared:
    """The caches of a group of layers, [layers, 2, T, KV, rows, hd]."""

    def __init__(self, group: CacheGroup, count: int, capacity: int) -> None:
        self.group = group
        self.array = self._zeros(count, capacity)

    def views(self, seats: range) -> dict[str, Array]:
        parts = (part[seats.start : seats.stop] for layer in self.array for part in layer)
        return dict(zip(self.group.names, parts, strict=True))

    def grow(self, capacity: int) -> None:
        old = self.array
        rows = old.shape[4]
        if kept_rows(capacity, self.group.window) > rows:
            self.array = self._zeros(old.shape[2], capacity)
            self.array[:, :, :, :, :rows] = old

    def _zeros(self, count: int, capacity: int) -> Array:
        # Zeros, since a NaN in a masked row would spoil every logit.
        group, rows = self.group, kept_rows(capacity, self.group.window)
        shape = (len(group.layers), 2, count, group.kv_heads, rows, group.head_dim)
        return np.zeros(shape, group.dtype)


class _Seat(HostRows):
    """One text's part of `_Shared`."""

    def __init__(self, shared: _Shared, seat: int) -> None:
        super().__init__(shared.group)
        self._shared, self._number = shared, seat

    @property
    def rows(self) -> Array:  # type: ignore[override]
        """See `HostRows`."""
        return self._shared.array[:, :, self._number]
