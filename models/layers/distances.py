"""Distances of queries and keys, in the buckets for which models learn what scores get."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BUCKETS = 32
"""How many buckets there are, of keys before a query and behind it."""

REACH = 128
"""The distance from which on all are in one bucket."""


def distance_buckets() -> NDArray[np.int64]:
    """Returns the buckets of all distances up to `REACH` (T5: Raffel et al., 2020).

    Keys behind the query have the second half of the buckets. Of each half, one half has a distance
    each, and the other ever more, in equal steps of the logarithm.

    Returns:
        [2 * REACH + 1] bucket of a key, from `REACH` before the query to as many behind it.
    """
    half = BUCKETS // 2
    each = half // 2
    places = np.arange(-REACH, REACH + 1)
    far = np.abs(places)
    # In float32, since the definition rounds down what it finds there.
    logs = np.log(np.maximum(far, each).astype(np.float32) / np.float32(each))
    steps = logs / np.float32(math.log(REACH / each)) * np.float32(half - each)
    late = np.minimum(each + steps.astype(np.int64), half - 1)
    found: NDArray[np.int64] = np.where(far < each, far, late) + half * (places > 0)
    return found
