"""How often what a source proposes is accepted, counted along the text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

_DECAY = 0.98  # of the counts at each new one: the last fifty or so matter
_STRENGTH = 16.0  # of the source's own word at first, in observations
_KEPT = 16.0  # observations that counts of earlier runs stand for at most

Counts = Mapping[int, tuple[float, float]]
"""Of each cell how many edges were accepted, and how many were seen, decayed."""


class Calibration:
    """Acceptance by cell, a cell being edges of which the source says the same.

    An estimate starts as the source's own word and moves to the decayed frequency (the posterior
    mean under a Beta prior). The word is forgotten as fast as any observation: most cells are seen
    a few times in a text, where it is the better guide, but it must not hold back those that know
    better. Only edges whose parent was reached count.

    Args:
        counts: of an earlier run. Its texts may have been others, so they weigh little.
    """

    def __init__(self, counts: Counts | None = None) -> None:
        self._cells: dict[int, tuple[float, float]] = {}
        for cell, (accepted, seen) in (counts or {}).items():
            share = min(1.0, _KEPT / seen)
            self._cells[cell] = accepted * share, seen * share

    @property
    def counts(self) -> Counts:
        """For another one to begin with."""
        return self._cells

    def acceptance(self, cell: int, word: float) -> float:
        """Probability that an edge of this cell is accepted if its parent is.

        Args:
            cell: any number that stands for what the source knows of the edge.
            word: the source's own estimate, in [0, 1].
        """
        accepted, seen = self._cells.get(cell, (0.0, 0.0))
        weight = _STRENGTH * max(0.0, 1 - (1 - _DECAY) * seen)  # decayed once an observation
        return (accepted + weight * word) / (seen + weight)

    def observe(self, cell: int, accepted: bool) -> None:
        """The parent of such an edge was reached; did the walk go on along the edge?"""
        before, seen = self._cells.get(cell, (0.0, 0.0))
        self._cells[cell] = (before * _DECAY + accepted, seen * _DECAY + 1)


class Scale:
    """Numbers to a few steps, so that edges fall into cells.

    Args:
        borders: ascending; a number on a border belongs above it.
    """

    def __init__(self, borders: Sequence[float]) -> None:
        self._borders = list(borders)

    def __call__(self, number: float) -> int:
        """The step, from 0 to the number of borders."""
        return bisect_right(self._borders, number)
