"""Parts that all CPU engines share: the KV cache in host memory, and memory estimates."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import numpy as np
import psutil

from edgespec.bundle.caches import CacheGroup
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.base import CallSizes, StageFile, StageSizes
from edgespec.runtime.engines.grouped import GroupedCache
from edgespec.runtime.engines.held import Held
from edgespec.runtime.engines.recurrence import Recurrence
from edgespec.runtime.shapes import ANY_SHAPES, COLUMNS, Shapes, kept_rows
from edgespec.system import control_groups, processors

MIB = 1 << 20

# glibc keeps freed blocks below a threshold, and raises it after each larger block. A fixed one
# lets larger blocks go back to the system.
_MMAP_THRESHOLD = -3
_KEPT_BELOW = 2 * MIB


class HostEngine:
    """Base class of the CPU engines.

    Args:
        shapes: shapes of calls; fixed ones become part of the name.
    """

    name: str
    memory = "cpu"
    variant: str | None = None
    keeps_states = False
    several_texts = False
    integer_caches = False

    def __init__(self, shapes: Shapes = ANY_SHAPES) -> None:
        self.hardware = processors.model_name()
        self.shapes = shapes
        if shapes.capacities:
            self.name = f"{self.name}#{shapes}"
        return_freed_memory()

    def available_bytes(self) -> int:
        """See `Engine`."""
        return available_bytes()


def available_bytes() -> int:
    """Returns the free bytes of host memory, also limited by the process's control groups."""
    free = int(psutil.virtual_memory().available)
    allowed = control_groups.free_bytes()
    return max(free if allowed is None else min(free, allowed), 0)


def score_bytes(stage: StageSizes, calls: CallSizes) -> int:
    """Returns the bytes of a layer's attention scores, [H, S, C+S or C+N] float32."""
    return 4 * stage.heads * calls.rows * (calls.capacity + max(calls.rows, COLUMNS))


def layer_cache_bytes(stage: StageSizes, calls: CallSizes) -> int:
    """Returns the bytes of one layer's cache in float32, which an operator may copy."""
    rows = (
        kept_rows(calls.capacity, group.window) * group.width // len(group.layers)
        for group in stage.cache_groups
    )
    return 4 * max(rows, default=0)


def copied_cache_bytes(stage: StageSizes, calls: CallSizes) -> int:
    """Returns the bytes of the copies that a graph of another program makes of its caches.

    They are two: the rows in use, and these with the new ones behind them.
    """
    return 2 * stage.cache_bytes(calls.capacity + calls.rows) if stage.copies_cache else 0


def activation_bytes(stage: StageSizes, calls: CallSizes) -> int:
    """Returns the bytes of the longest call's other tensors, float32 except keys and values.

    For each row these are the keys and values of all layers, twice since the graph joins them, six
    vectors of the hidden size and three of the MLP's size.
    """
    new_kv = 2 * stage.row_bytes
    return calls.rows * (new_kv + 4 * (6 * stage.hidden + 3 * stage.intermediate))


class HostCache(GroupedCache["HostGroup"]):
    """A KV cache in host memory.

    Attributes:
        views: the stage's inputs by name: keys and values of each layer, [KV, C, hd] and
            contiguous, behind a dimension of one text if the stage's calls hold several; and those
            of `recurrence`. It is a new dict after every growth, so that engines can tell by
            identity whether to bind again.
        capacity: C, in rows of a group that keeps them all.
        recurrence: see `Cache`.
    """

    def __init__(self, stage: StageFile, capacity: int, most: int) -> None:
        self.capacity = capacity
        self.recurrence = Recurrence(stage.recurrent) if stage.recurrent else None
        self._several_texts = stage.several_texts
        super().__init__([HostGroup(group, capacity, most) for group in stage.cache_groups])
        self.views = self._make_views()

    def grow(self, capacity: int) -> None:
        """See `Cache`."""
        return_freed_memory()  # engines have freed their buffers of the old capacity
        self.capacity = capacity
        for group in self._groups:
            group.grow(capacity)
        self.views = self._make_views()

    def _make_views(self) -> dict[str, Array]:
        views = {} if self.recurrence is None else dict(self.recurrence.views)
        for group in self._groups:
            views |= group.views(self._several_texts)
        return views


class HostRows:
    """What the cache of a group of layers does with its rows, wherever they lie.

    Args:
        group: the layers.

    Attributes:
        rows: [layers, 2, KV, rows, hd], the memory.
        held: which positions of the text the rows hold.
    """

    rows: Array

    def __init__(self, group: CacheGroup) -> None:
        self.group, self.held = group, Held(group.window)

    def write(self, new_kv: object, rows: Sequence[int], start: int) -> None:
        """See `Cache`."""
        source, target = cast(Array, new_kv), self.rows
        for first, place, length in _runs(rows, self.held.places(start, len(rows))):
            target[:, :, :, place : place + length] = source[:, :, :, first : first + length]
        self.held.extend(start + len(rows))

    def move(self, rows: Sequence[int], start: int) -> None:
        """See `Cache`."""
        from_places, held = [self.held.place(row) for row in rows], self.rows
        for first, place, length in _runs(from_places, self.held.places(start, len(rows))):
            if first != place:
                held[:, :, :, place : place + length] = held[:, :, :, first : first + length]

    def bytes_at(self, capacity: int) -> int:
        """See `Cache`."""
        return kept_rows(capacity, self.group.window) * self.group.row_bytes

    def read(self, length: int, start: int) -> Array:
        """See `Cache`."""
        first = max(self.held.first, start)
        if not self.held.first:
            return self.rows[:, :, :, first:length].copy()
        # Contiguous, as files need it; an index would leave rows in another order of bytes.
        return self.rows.take(self.held.places(first, max(length - first, 0)), axis=3)

    def load(self, rows: Array, length: int) -> None:
        """See `Cache`."""
        count, target = rows.shape[3], self.rows
        self.held.first = length - count
        for source, place, n in _runs(range(count), self.held.places(length - count, count)):
            target[:, :, :, place : place + n] = rows[:, :, :, source : source + n]


class HostGroup(HostRows):
    """The cache of layers that lie in one array [layers, 2, KV, rows, hd] of their own."""

    def __init__(self, group: CacheGroup, capacity: int, most: int) -> None:
        super().__init__(group)
        # Zeros, since a NaN in a masked row would spoil every logit. All memory is reserved at
        # once, so that growing needs no second copy; the system provides it only when written.
        room = kept_rows(max(capacity, most), group.window) * group.width
        self._room = np.zeros(room, group.dtype)
        self.rows = self._lay_out(kept_rows(capacity, group.window))

    def views(self, by_text: bool) -> dict[str, Array]:
        """Returns the stage's inputs by name; behind a dimension of one text if `by_text`."""
        parts = [part for layer in self.rows for part in layer]
        return dict(zip(self.group.names, (p[None] if by_text else p for p in parts), strict=True))

    def grow(self, capacity: int) -> None:
        """See `Cache`."""
        old, rows = self.rows, kept_rows(capacity, self.group.window)
        kept = old.shape[3]
        if rows == kept:
            return
        if rows * self.group.width > self._room.size:
            self._room = np.zeros(rows * self.group.width, old.dtype)
        self.rows = self._lay_out(rows)
        # Blocks move to higher addresses, so the last one is moved first.
        for place in reversed(list(np.ndindex(old.shape[:3]))):
            self.rows[place][:kept] = old[place]
            self.rows[place][kept:] = 0

    def _lay_out(self, rows: int) -> Array:
        layers, group = len(self.group.layers), self.group
        shape = (layers, 2, group.kv_heads, rows, group.head_dim)
        return self._room[: math.prod(shape)].reshape(shape)


def _runs(rows: Sequence[int], places: Sequence[int]) -> list[tuple[int, int, int]]:
    """Splits pairs into runs in which both are consecutive: (first row, first place, length).

    Slices are copied far faster than indexed rows.
    """
    runs: list[tuple[int, int, int]] = []
    for row, place in zip(rows, places, strict=True):
        if runs:
            first, target, length = runs[-1]
            if (row, place) == (first + length, target + length):
                runs[-1] = (first, target, length + 1)
                continue
        runs.append((row, place, 1))
    return runs


def return_freed_memory() -> None:
    """Returns freed memory to the system now, and large freed blocks from now on.

    Tokenizers and engines free blocks after loading and when shapes change, which glibc would
    keep, for each stage of a model. Other systems take them back by themselves.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # a C library other than glibc
            libc = ctypes.CDLL(None)
            libc.mallopt(_MMAP_THRESHOLD, _KEPT_BELOW)
            libc.malloc_trim(0)
