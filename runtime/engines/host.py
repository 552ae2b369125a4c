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

from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.base import CallSizes, StageFile, StageSizes
from edgespec.runtime.engines.recurrence import Recurrence
from edgespec.runtime.shapes import ANY_SHAPES, COLUMNS, Shapes
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
    integer_products = False
    keeps_states = False

    def __init__(self, shapes: Shapes = ANY_SHAPES) -> None:
        self.hardware = processors.model_name()
        self.shapes = shapes
        if shapes.capacities:
            self.name = f"{self.name}#{shapes}"
        _return_freed_memory()

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
    return 4 * 2 * stage.kv_width * calls.capacity


def copied_cache_bytes(stage: StageSizes, calls: CallSizes) -> int:
    """Returns the bytes of the copies that a graph of another program makes of its caches.

    They are two: the rows in use, and these with the new ones behind them.
    """
    row = 2 * stage.layers * stage.kv_width * stage.kv_bytes
    return 2 * row * (calls.capacity + calls.rows) if stage.copies_cache else 0


def activation_bytes(stage: StageSizes, calls: CallSizes) -> int:
    """Returns the bytes of the longest call's other tensors, float32 except keys and values.

    For each row these are the keys and values of all layers, twice since the graph joins them, six
    vectors of the hidden size and three of the MLP's size.
    """
    new_kv = 2 * 2 * stage.layers * stage.kv_width * stage.kv_bytes
    return calls.rows * (new_kv + 4 * (6 * stage.hidden + 3 * stage.intermediate))


class HostCache:
    """A KV cache in host memory: one array [layers, 2, KV, C, hd].

    Attributes:
        views: views of the array by input name (`past.{layer}.key` and `.value`), each
            [KV, C, hd] and contiguous, and those of `recurrence`. It is a new dict after every
            growth, so that engines can tell by identity whether to bind again.
        recurrence: see `Cache`.
    """

    def __init__(self, stage: StageFile, capacity: int, most: int) -> None:
        layers, pair, heads, width = stage.cache_shape
        self._names = stage.past
        self.recurrence = Recurrence(stage.recurrent) if stage.recurrent else None
        # Zeros, since a NaN in a masked row would spoil every logit. All memory is reserved at
        # once, so that growing needs no second copy; the system provides it only when written.
        room = layers * pair * heads * max(capacity, most) * width
        self._room = np.zeros(room, stage.kv_dtype)
        self._rows = self._lay_out((layers, pair, heads, capacity, width))
        self.views = self._make_views()

    @property
    def capacity(self) -> int:
        """C, in rows."""
        return int(self._rows.shape[3])

    def grow(self, capacity: int) -> None:
        """See `Cache`."""
        _return_freed_memory()  # engines have freed their buffers of the old capacity
        old = self._rows
        shape = (*old.shape[:3], capacity, old.shape[4])
        if math.prod(shape) > self._room.size:
            self._room = np.zeros(math.prod(shape), old.dtype)
        self._rows = self._lay_out(shape)
        kept = old.shape[3]
        # Blocks move to higher addresses, so the last one is moved first.
        for place in reversed(list(np.ndindex(old.shape[:3]))):
            self._rows[place][:kept] = old[place]
            self._rows[place][kept:] = 0
        self.views = self._make_views()

    def write(self, new_kv: object, rows: Sequence[int], start: int) -> None:
        """See `Cache`."""
        if not len(self._rows):
            return
        source = cast(Array, new_kv)
        for run_start, run_length, offset in _runs(rows):
            self._rows[:, :, :, start + offset : start + offset + run_length] = source[
                :, :, :, run_start : run_start + run_length
            ]

    def move(self, rows: Sequence[int], start: int) -> None:
        """See `Cache`."""
        for run_start, run_length, offset in _runs(rows):
            if run_start != start + offset:
                target = self._rows[:, :, :, start + offset : start + offset + run_length]
                target[...] = self._rows[:, :, :, run_start : run_start + run_length]

    @property
    def row_bytes(self) -> int:
        """See `Cache`."""
        return self._rows.nbytes // self.capacity

    def read(self, rows: int) -> Array:
        """See `Cache`."""
        return self._rows[:, :, :, :rows].copy()

    def load(self, rows: Array) -> None:
        """See `Cache`."""
        self._rows[:, :, :, : rows.shape[3]] = rows

    def _lay_out(self, shape: tuple[int, ...]) -> Array:
        return self._room[: math.prod(shape)].reshape(shape)

    def _make_views(self) -> dict[str, Array]:
        parts = (part for layer in self._rows for part in layer)
        states = {} if self.recurrence is None else self.recurrence.views
        return dict(zip(self._names, parts, strict=True)) | states


def _runs(rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """Splits rows into runs of consecutive ones, (first row, length, offset in `rows`).

    Slices are copied far faster than indexed rows.
    """
    if isinstance(rows, range) and rows.step == 1:
        return [(rows.start, len(rows), 0)]
    runs: list[tuple[int, int, int]] = []
    for offset, row in enumerate(rows):
        if runs and runs[-1][0] + runs[-1][1] == row:
            first, length, begin = runs[-1]
            runs[-1] = (first, length + 1, begin)
        else:
            runs.append((row, 1, offset))
    return runs


def _return_freed_memory() -> None:
    """Returns freed memory to the system now, and large freed blocks from now on.

    Tokenizers and engines free blocks after loading and when shapes change, which glibc would
    keep, for each stage of a model. Other systems take them back by themselves.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # a C library other than glibc
            libc = ctypes.CDLL(None)
            libc.mallopt(_MMAP_THRESHOLD, _KEPT_BELOW)
            libc.malloc_trim(0)
