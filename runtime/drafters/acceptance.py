"""Acceptance statistics: how often the proposals of a draft source are accepted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Protocol

from edgespec.runtime.speculation.generation import Generation

_DECAY = 0.98  # factor on the counts at each observation: about the last fifty matter
_PRIOR_WEIGHT = 16.0  # initial weight of the prior, in observations


class Expectation(Protocol):
    """What a source expects next, as a text goes on token by token."""

    def edges(self) -> Iterable[tuple[int, int]]:
        """Returns the tokens that may be next, each with the cell of its edge."""

    def follow(self, token: int) -> bool:
        """Goes on by a token; returns whether the source has looked at what may follow it."""


class AcceptanceTable:
    """Estimated acceptance of edges, grouped into cells of edges that look alike to the source.

    An estimate starts from the source's own estimate (the prior) and moves to the decayed
    frequency, as the posterior mean under a Beta prior does. The weight of the prior decays like
    any observation. Most cells are seen only a few times in a text, where the prior is the better
    estimate, but it must not hold back cells with many observations. Only edges whose parent was
    reached count.
    """

    def __init__(self) -> None:
        # By cell, the decayed numbers of accepted edges and of seen edges.
        self._cells: dict[int, tuple[float, float]] = {}

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

    def count(self, tokens: Iterable[int], expected: Expectation) -> None:
        """Counts the edges along tokens that the target has chosen, verified or not.

        Args:
            tokens: the tokens, in their order.
            expected: what the source has expected before the first of them. It is followed up to
                the last one, or to where the source has looked no further.
        """
        for token in tokens:
            for candidate, cell in expected.edges():
                self._observe(cell, candidate == token)
            if not expected.follow(token):
                return

    def _observe(self, cell: int, accepted: bool) -> None:
        before, seen = self._cells.get(cell, (0.0, 0.0))
        self._cells[cell] = (before * _DECAY + accepted, seen * _DECAY + 1)


class Acceptances:
    """The acceptances of a source: of greedy tokens and of sampled ones, which differ."""

    def __init__(self) -> None:
        self._tables = AcceptanceTable(), AcceptanceTable()

    def of(self, generation: Generation) -> AcceptanceTable:
        """Returns the table of a generation's way to choose tokens."""
        return self._tables[generation.is_sampled]


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
    """Returns the cell of an edge of a model's tree.

    Args:
        value: probability that the model gives it, in (0, 1].
        rank: number of siblings that are likelier.
        depth: number of drafted tokens before it.
    """
    row = min(depth, _DEPTHS - 1) * _RANKS
    return _VALUES(value) * _RANKS * _DEPTHS + row + min(rank, _RANKS - 1)
