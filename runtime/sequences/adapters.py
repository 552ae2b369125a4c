"""Which adapters add to the rows of a pass: those of their sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgespec.runtime.arrays import ADAPTER_SCALES, ADAPTERS, Array

Adapters = tuple[tuple[int, float], ...]
"""Numbers of adapters and their scales."""


def adapter_inputs(rows: Sequence[tuple[Adapters, int]]) -> dict[str, Array]:
    """Returns what a graph reads of the adapters of its rows.

    Args:
        rows: the adapters of neighbouring rows, and how many rows have them.
    """
    counts = [count for _, count in rows]
    most = max(len(adapters) for adapters, _ in rows)
    numbers = np.full((len(rows), most), -1, np.int32)
    scales = np.zeros((len(rows), most), np.float32)
    for own_numbers, own_scales, (adapters, _) in zip(numbers, scales, rows, strict=True):
        for place, (number, scale) in enumerate(adapters):
            own_numbers[place] = number
            own_scales[place] = scale
    return {ADAPTERS: numbers.repeat(counts, 0), ADAPTER_SCALES: scales.repeat(counts, 0)}
