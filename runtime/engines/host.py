"""The KV cache in host memory, which all CPU engines share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from edgespec.runtime.engines.base import Array, StageFile


class HostCache:
    """One array [layers, 2, KV, C, hd]; engines read its layers as views, without a copy.

    Attributes:
        views: `past.{layer}.key` and `.value`, each [KV, C, hd] and contiguous. A new dict after
            every growth, so that engines can tell by identity whether to bind again.
    """

    def __init__(self, stage: StageFile, capacity: int) -> None:
        layers, pair, heads, width = stage.cache_shape
        # Zeros, because a NaN in a masked row would poison every logit.
        self._rows = np.zeros((layers, pair, heads, capacity, width), stage.kv_dtype)
        self.views = self._make_views()

    @property
    def capacity(self) -> int:
        """C, in rows."""
        return self._rows.shape[3]

    def grow(self, capacity: int) -> None:
        """See `Cache`."""
        old = self._rows
        self._rows = np.zeros((*old.shape[:3], capacity, old.shape[4]), old.dtype)
        self._rows[:, :, :, : old.shape[3]] = old
        self.views = self._make_views()

    def write(self, new_kv: object, rows: Sequence[int], start: int) -> None:
        """See `Cache`."""
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

    def _make_views(self) -> dict[str, Array]:
        return {
            f"past.{layer}.{part}": self._rows[layer, index]
            for layer in range(self._rows.shape[0])
            for index, part in enumerate(("key", "value"))
        }


def _runs(rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """Consecutive rows as (first row, length, offset): slices copy far faster than indices."""
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
