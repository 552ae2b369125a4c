"""Rotary position embedding (Su et al., RoFormer, 2021): cosines and sines by position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgespec.bundle.sublayers import rope_inputs
from edgespec.runtime.arrays import Floats

if TYPE_CHECKING:
    from edgespec.bundle import RopeTable

_FIRST = 1024  # positions computed at first


class Rope:
    """Cosines and sines of all positions so far; a position's are always the same bits.

    Args:
        table: frequencies. Where one is 0, nothing is rotated or scaled.

    Attributes:
        inputs: names of a graph's inputs for cosines and sines.
    """

    def __init__(self, table: RopeTable) -> None:
        self.inputs = rope_inputs(table.name)
        self._inv_freq = np.asarray(table.inv_freq, np.float64)
        self._scale = np.where(self._inv_freq == 0, 1.0, table.attention_factor)
        self._cos = self._sin = np.empty((0, self._inv_freq.size), np.float32)

    def at(self, positions: list[int], last: int) -> tuple[Floats, Floats]:
        """Returns cosines and sines of n rows, each [n, head_dim / 2] float32.

        Args:
            positions: of the rows.
            last: the largest of them.
        """
        if last >= len(self._cos):
            count = max(last + 1, 2 * len(self._cos), _FIRST)
            angles = np.arange(count, dtype=np.float64)[:, None] * self._inv_freq
            self._cos = (self._scale * np.cos(angles)).astype(np.float32)
            self._sin = (self._scale * np.sin(angles)).astype(np.float32)
        return self._cos[positions], self._sin[positions]
