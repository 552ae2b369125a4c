"""Passes of models whose rows see all of their text, which is read in one call."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgespec.bundle import PART, PLACE, SIGHT
from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.sequences.model import Graph


class WholeTextGraph:
    """A graph for whose rows those of a sequence in a call are a text, and the first of a pair.

    Args:
        graph: makes passes.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __call__(self, feeds: Mapping[str, Array]) -> Mapping[str, Floats]:
        """Makes a pass; see `Graph`."""
        owners = feeds["sequence"]
        rows = np.arange(len(owners))
        place = rows - np.searchsorted(owners, owners)
        behind = np.searchsorted(owners, owners, side="right") - 1 - rows
        first = np.zeros(len(rows), np.int64)
        return self._graph({PART: first, PLACE: place, SIGHT: behind.astype(np.int32), **feeds})
