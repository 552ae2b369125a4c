"""Types of numpy arrays that several modules share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of any element type, such as the inputs and outputs of a graph."""

Floats = npt.NDArray[np.float32]
"""A float32 array, such as logits or hidden states."""

Ids = npt.NDArray[np.int64]
"""An int64 array of tokens."""

Mask = npt.NDArray[np.bool_]
"""A boolean array that says which row attends to which."""


def grown(array: Array | None, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """Returns zeros of this shape that begin, along each dimension, with what `array` holds."""
    made = np.zeros(shape, dtype)
    if array is not None:
        made[tuple(map(slice, array.shape))] = array
    return made
