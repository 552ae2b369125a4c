"""What several modules share of numpy arrays: their types, names of inputs, and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of any element type, such as the inputs and outputs of a graph."""

Floats = npt.NDArray[np.float32]
"""A float32 array, such as logits or hidden states."""

Doubles = npt.NDArray[np.float64]
"""A float64 array, such as noise."""

Ids = npt.NDArray[np.int64]
"""An int64 array of tokens, or of their places."""

Mask = npt.NDArray[np.bool_]
"""A boolean array, such as which tokens may come next."""

ADAPTERS = "adapters"
"""Input of a graph to which adapters add, [S, T] int32: numbers of each row's; -1: none."""

ADAPTER_SCALES = "adapter_scales"
"""Input of such a graph, [S, T] float32: by what the products of these are multiplied."""


def spare_places(slots: int) -> int:
    """Returns for how many rows a cache that is written in order has room besides its slots'.

    So many that rows are seldom moved together, and at least those of padding of any call.
    """
    return max(128, slots // 8)


def slots_at(slots: Sequence[int], axis: int) -> tuple[Any, ...]:
    """Returns the index of slots in an array whose slots are along this axis."""
    return (*[slice(None)] * axis, np.array(slots, np.int64))


def resized(array: Array | None, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """Returns zeros of this shape that begin, along each dimension, as `array` does."""
    made = np.zeros(shape, dtype)
    if array is not None:
        kept = tuple(map(slice, map(min, array.shape, shape)))
        made[kept] = array[kept]
    return made
