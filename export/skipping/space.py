"""Which skip sets a search considers, as rows of bits: one for each sublayer, the head left out."""

from __future__ import annotations

import numpy as np

from edgespec.export.skipping.costs import Bits
from edgespec.export.skipping.sets import MOST_STAGES

# Each run of left-out sublayers cuts twice.
_MOST_RUNS = (MOST_STAGES - 1) // 2
_SHIFTS = (-2, -1, 1, 2)
_LONGEST_TOGGLE = 4  # sublayers that one step of a local search adds or removes together


class SkipSpace:
    """The sets over a model's sublayers that keep the first and the last layer, and early exits.

    An early exit leaves out all layers behind one of them, the last included. The runs that any
    other set leaves out are so few that the set alone keeps to the stages that are allowed.

    Attributes:
        exits: [layers - 1, 2 * layers] the early exits, the shortest draft first.
    """

    def __init__(self, layers: int) -> None:
        self.width = 2 * layers
        self._inner = range(2, self.width - 2)
        places = np.arange(self.width)
        self.exits: Bits = np.array([places >= first for first in range(2, self.width, 2)])
        self._windows: Bits = np.array(
            [
                (places >= start) & (places < start + length)
                for length in range(1, _LONGEST_TOGGLE + 1)
                for start in range(self._inner.start, self._inner.stop - length + 1)
            ]
        ).reshape(-1, self.width)

    def valid(self, sets: Bits) -> Bits:
        """[sets] which of these rows are sets of this space."""
        edges = np.diff(np.pad(sets, ((0, 0), (1, 1))).astype(np.int8), axis=1)
        runs = (edges == 1).sum(1)
        ends = sets[:, :2].any(1) | sets[:, -2:].any(1)
        exits = (sets[:, None] == self.exits[None]).all(2).any(1)
        found: Bits = ((runs >= 1) & (runs <= _MOST_RUNS) & ~ends) | exits
        return found

    def random(self, rng: np.random.Generator, count: int) -> Bits:
        """[count, width] sets with random numbers and borders of runs; exits where layers lack."""
        places = np.arange(self._inner.start, self._inner.stop + 1)
        if len(places) < 2:
            return self.exits[rng.integers(len(self.exits), size=count)]
        sets = np.zeros((count, self.width), np.bool_)
        for row in sets:
            runs = rng.integers(1, min(_MOST_RUNS, len(places) // 2) + 1)
            borders = np.sort(rng.choice(places, 2 * runs, replace=False))
            for start, stop in borders.reshape(-1, 2):
                row[start:stop] = True
        return sets

    def neighbours(self, one: Bits) -> Bits:
        """Sets a step from this row: some sublayers in a row toggled, or everything shifted."""
        if one[-1]:
            index = int((self.exits == one).all(1).argmax())
            return self.exits[max(index - 2, 0) : index + 3]
        found = np.array([*(one ^ self._windows), *(np.roll(one, steps) for steps in _SHIFTS)])
        kept: Bits = found[self.valid(found)]
        return kept
