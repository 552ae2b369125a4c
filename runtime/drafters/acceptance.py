"""Acceptance statistics: how often the proposals of a draft source are accepted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

_DECAY = 0.98  # factor on the counts at each observation: about the last fifty matter
_PRIOR_WEIGHT = 16.0  # initial weight of the prior, in observations
_EARLIER_WEIGHT = 16.0  # largest weight of counts from an earlier run, in observations

Counts = Mapping[int, tuple[float, float]]
"""By cell, the decayed numbers of accepted edges and of seen edges."""


class Calibration:
    """Estimated acceptance of edges, grouped into cells of edges that look alike to the source.

    An estimate starts from the source's own estimate (the prior) and moves to the decayed
    frequency, as the posterior mean under a Beta prior does. The weight of the prior decays like
    any observation. Most cells are seen only a few times in a text, where the prior is the better
    estimate, but it must not hold back cells with many observations. Only edges whose parent was
    reached count.

    Args:
        counts: counts of an earlier run. They weigh little, because its texts may have been
            different.
    """

    def __init__(self, counts: Counts | None = None) -> None:
        self._cells: dict[int, tuple[float, float]] = {}
        for cell, (accepted, seen) in (counts or {}).items():
            share = min(1.0, _EARLIER_WEIGHT / seen)
            self._cells[cell] = accepted * share, seen * share

    @property
    def counts(self) -> Counts:
        """Counts so far, to start another calibration from."""
        return self._cells

    def acceptance(self, cell: int, prior: float) -> float:
        """Returns the probability that an edge is accepted if its parent is.

        Args:
            cell: number of the cell that the edge belongs to.
            prior: the source's own estimate, in [0, 1].
        """
        accepted, seen = self._cells.get(cell, (0.0, 0.0))
        # `seen` is a geometric sum, so this is _DECAY ** observations.
        weight = _PRIOR_WEIGHT * max(0.0, 1 - (1 - _DECAY) * seen)
        return (accepted + weight * prior) / (seen + weight)

    def observe(self, cell: int, accepted: bool) -> None:
        """Record an edge whose parent was reached.

        Args:
            cell: number of the cell that the edge belongs to.
            accepted: whether the target chose the token of the edge.
        """
        before, seen = self._cells.get(cell, (0.0, 0.0))
        self._cells[cell] = (before * _DECAY + accepted, seen * _DECAY + 1)


class Bins:
    """Assigns numbers to a few bins, so that similar edges share a cell.

    Args:
        borders: borders between the bins, ascending; a number on a border belongs to the bin above.
    """

    def __init__(self, borders: Sequence[float]) -> None:
        self._borders = list(borders)

    def __call__(self, number: float) -> int:
        """Returns the index of the bin, from 0 to the number of borders."""
        return bisect_right(self._borders, number)


_VALUES = Bins((0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97))
_RANKS = 4  # ranks with cells of their own; higher ones share the last
_DEPTHS = 4  # depths with cells of their own; larger ones share the last


def edge_cell(value: float, rank: int, depth: int) -> int:
    """Returns the calibration cell of an edge of a model's tree.

    Args:
        value: probability that the model gives it, in (0, 1].
        rank: number of siblings that are likelier.
        depth: number of drafted tokens before it.
    """
    row = min(depth, _DEPTHS - 1) * _RANKS
    return _VALUES(value) * _RANKS * _DEPTHS + row + min(rank, _RANKS - 1)
