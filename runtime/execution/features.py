"""The features of a text's last positions: hidden rows of the target that a draft head reads."""

from __future__ import annotations

import numpy as np

from edgespec.bundle import FEATURES, Role
from edgespec.runtime.arrays import Floats

FEATURE_ROWS = 512
"""Number of positions whose features are kept. A head that is further behind begins anew here."""


class FeatureWindow:
    """The features of the last positions of a text, as a ring of rows.

    Args:
        width: size of a row.
        most: largest number of positions.

    Attributes:
        start: first position that it holds.
        stop: position after the last one, which is the length of the text.
    """

    def __init__(self, width: int, most: int = FEATURE_ROWS) -> None:
        self._rows = np.empty((most, width), np.float32)
        self.reset(0)

    def reset(self, length: int) -> None:
        """Forget all rows; the text has this length."""
        self.start = self.stop = length

    def truncate(self, length: int) -> None:
        """Forget the rows of positions from `length` on."""
        self.stop = min(self.stop, length)
        self.start = min(self.start, self.stop)

    def append(self, rows: Floats) -> None:
        """Add the rows of the next positions, [n, width]; the oldest ones may give way."""
        most = len(self._rows)
        begin, self.stop = self.stop, self.stop + len(rows)
        kept = rows[-most:]
        places = np.arange(self.stop - len(kept), self.stop) % most
        self._rows[places] = kept
        self.start = max(min(self.start, begin), self.stop - most)

    def first(self, length: int) -> Floats:
        """Returns a copy of the rows that it holds of positions before `length`, perhaps none."""
        stop = max(self.start, min(length, self.stop))
        return self.read(self.start, stop)

    def read(self, start: int, stop: int) -> Floats:
        """Returns a copy of the rows of positions start to stop, which it must hold."""
        if not self.start <= start <= stop <= self.stop:
            raise ValueError(f"features {start}:{stop} of {self.start}:{self.stop}")
        rows: Floats = self._rows[np.arange(start, stop) % len(self._rows)]
        return rows


def feature_width(role: Role) -> int:
    """Returns the size of a position's features in a target's results; 0 if it gives none."""
    return sum(
        int(output.shape[-1])
        for stage in role.stages
        for output in stage.outputs
        if output.name == FEATURES
    )


def side_by_side(first: Floats | None, second: Floats | None) -> Floats | None:
    """Returns the features of some rows from earlier and from later stages together."""
    if first is None or second is None:
        return second if first is None else first
    return np.concatenate((first, second), axis=1)
