"""KV caches on a GPU, of one text each, which may lie side by side as shared calls read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.base import StageFile, StageOutputs
from edgespec.runtime.engines.gpu.device_rows import DeviceGroup, Gpu, GroupGraphs, TextRows
from edgespec.runtime.engines.grouped import GroupedCache
from edgespec.runtime.engines.held import Held
from edgespec.runtime.engines.recurrence import Recurrence
from edgespec.runtime.shapes import kept_rows

_LOADED_ROWS = 256  # rows that are uploaded at a time


class DeviceOutputs(StageOutputs):
    """The outputs of a call, whose new keys and values stay on the device."""

    def new_kv_of(self, text: int) -> Sequence[object]:
        """See `StageOutputs`."""
        return [TextRows(each, text) for each in self.new_kv]


class CacheGraphs:
    """Compiled graphs for the caches of one stage, which all texts share.

    Args:
        gpu: the GPU that runs the graphs.
        stage: the stage.
    """

    def __init__(self, gpu: Gpu, stage: StageFile) -> None:
        self.by_text = stage.several_texts
        self.groups = [GroupGraphs(gpu, group, self.by_text) for group in stage.cache_groups]


class DeviceCache(GroupedCache["_TextGroup"]):
    """The KV cache of one text on the GPU; others may lie beside it.

    Args:
        room: where it lies.
        number: number of the text there.

    Attributes:
        recurrence: see `Cache`.
    """

    recurrence: Recurrence | None = None

    def __init__(self, room: DeviceRoom, number: int) -> None:
        super().__init__([_TextGroup(group, number) for group in room.groups])
        self._room, self._number = room, number

    @classmethod
    def alone(cls, graphs: CacheGraphs, capacity: int) -> DeviceCache:
        """Returns a cache beside which there are no others."""
        return cls(DeviceRoom(graphs, 1, capacity), 0)

    @property
    def capacity(self) -> int:
        """See `Cache`."""
        return self._room.capacity

    @property
    def values(self) -> dict[str, Any]:
        """Tensors by the names of the stage's inputs, as for a call over this text alone.

        They are a copy if other texts lie beside it. It is a new dict after every growth, so that
        an executable can tell by identity whether to bind again.
        """
        return self._room.picked(self._number)

    def grow(self, capacity: int) -> None:
        """See `Cache`; the caches beside it grow, too."""
        self._room.grow(capacity)

    def move(self, rows: Sequence[int], start: int) -> None:
        """See `Cache`."""
        stay = 0  # number of rows that are already in their place
        while stay < len(rows) and rows[stay] == start + stay:
            stay += 1
        if stay < len(rows):
            super().move(rows[stay:], start + stay)


class DeviceSeats:
    """Caches of several texts side by side on the GPU.

    Args:
        graphs: graphs of a stage whose calls hold several texts.
        count: number of texts.
        capacity: C, in rows of a group that keeps them all; the same for all texts.
    """

    def __init__(self, graphs: CacheGraphs, count: int, capacity: int) -> None:
        self._room = DeviceRoom(graphs, count, capacity)
        self._seats = [DeviceCache(self._room, seat) for seat in range(count)]

    @property
    def capacity(self) -> int:
        """See `Seats`."""
        return self._room.capacity

    def seat(self, number: int) -> DeviceCache:
        """Returns the cache of one text, from 0 on."""
        return self._seats[number]

    def among(self, seats: range) -> DeviceRoom:
        """Returns the caches of the first texts, for a call.

        WebGPU can bind the beginning of a tensor, but no other part of it.
        """
        if seats.start:
            raise ValueError(f"texts {seats} of a call: the first must be 0")
        return self._room

    def grow(self, capacity: int) -> None:
        """See `Seats`."""
        self._room.grow(capacity)


class DeviceRoom:
    """The tensors of caches that lie side by side: [KV, C, hd], or [T, KV, C, hd].

    Attributes:
        capacity: C, in rows of a group that keeps them all.
        groups: those of each group of layers.
        values: all tensors by the names of the stage's inputs; a new dict after every growth.
    """

    def __init__(self, graphs: CacheGraphs, count: int, capacity: int) -> None:
        self.capacity, self._count = capacity, count
        self.groups = [DeviceGroup(each, count, capacity) for each in graphs.groups]
        self.values = self._all_values()
        self._picked: dict[str, Any] | None = None

    def grow(self, capacity: int) -> None:
        """Enlarges all caches to `capacity` rows; if the device fails, they are lost."""
        self.capacity, self._picked = capacity, None
        self.values.clear()  # no tensor is to outlive its growth
        for group in self.groups:
            group.grow(capacity)
        self.values = self._all_values()

    def picked(self, text: int) -> dict[str, Any]:
        """Returns the tensors of one text alone; the next call overwrites them."""
        if self._count == 1:
            return self.values
        if self._picked is None:
            self._picked = {}
            for group in self.groups:
                self._picked |= group.room_for_one()
        for group in self.groups:
            group.pick(text, self._picked)
        return self._picked

    def _all_values(self) -> dict[str, Any]:
        return {name: each for group in self.groups for name, each in group.values.items()}


class _TextGroup:
    """One text's part of the tensors of a group of layers."""

    def __init__(self, group: DeviceGroup, text: int) -> None:
        self._group, self._text = group, text
        self.held = Held(group.graphs.group.window)

    def write(self, new_kv: object, rows: Sequence[int], start: int) -> None:
        if len(rows):
            places = self.held.places(start, len(rows))
            self._group.write(self._text, cast(TextRows, new_kv), rows, places)
            self.held.extend(start + len(rows))

    def move(self, rows: Sequence[int], start: int) -> None:
        from_places = [self.held.place(row) for row in rows]
        self._group.move(self._text, from_places, self.held.places(start, len(rows)))

    def bytes_at(self, capacity: int) -> int:
        group = self._group.graphs.group
        return kept_rows(capacity, group.window) * group.row_bytes

    def read(self, length: int, start: int) -> Array:
        first = max(self.held.first, start)
        return self._group.read(self._text, self.held.places(first, max(length - first, 0)))

    def load(self, rows: Array, length: int) -> None:
        count = rows.shape[3]
        self.held.first = length - count
        for first in range(0, count, _LOADED_ROWS):
            part = np.ascontiguousarray(rows[:, :, :, first : first + _LOADED_ROWS])
            uploaded = TextRows(self._group.graphs.gpu.placed(part))
            places = self.held.places(length - count + first, part.shape[3])
            self._group.write(self._text, uploaded, range(part.shape[3]), places)
