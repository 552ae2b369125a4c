"""Features of a sequence's last tokens: hidden rows of the target that draft heads read."""

from __future__ import annotations

from collections import deque
from itertools import islice

import numpy as np

from edgespec.runtime.arrays import Floats

_MOST = 512  # tokens whose features are kept; a head that is further behind begins anew


class Features:
    """Features of consecutive tokens, up to the last one that the target has read.

    Attributes:
        stop: position behind the last token.
    """

    def __init__(self) -> None:
        self.stop = 0
        self._rows = deque[Floats](maxlen=_MOST)

    @property
    def start(self) -> int:
        """Position of the first token."""
        return self.stop - len(self._rows)

    def append(self, rows: Floats, stop: int) -> None:
        """Adds the features of tokens, [n, F], of which the last is before position `stop`.

        Where a sequence shares slots that an earlier one has read, there is a gap before them; what
        was kept before the gap is forgotten.
        """
        if stop - len(rows) != self.stop:
            self._rows.clear()
        self._rows.extend(rows)
        self.stop = stop

    def read(self, start: int, count: int) -> Floats:
        """Returns the features of tokens from a position on, [count, F]."""
        first = start - self.start
        return np.stack(list(islice(self._rows, first, first + count)))
