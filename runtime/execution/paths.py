"""Ways through a model's stages that leave some out, and what they compute of the whole way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.bundle import Role
from edgespec.runtime.arrays import Floats
from edgespec.runtime.execution.feeds import Rows

NOWHERE = -2
"""Stands for the scratch row of a token that has none."""


@dataclass(frozen=True)
class Path:
    """The stages of a model that a draft runs.

    Attributes:
        stages: their numbers, ascending; the first and the last stage are among them.
        exact: how many of the first stages come before any that is left out: for the same rows
            they compute what the whole model does.
    """

    stages: tuple[int, ...]
    exact: int

    @classmethod
    def without(cls, role: Role, skipped: Sequence[int]) -> Path:
        """The stages of a role that hold none of these sublayers.

        Raises:
            ValueError: if a stage holds others as well, or the first stage is left out.
        """
        left_out = set(skipped)
        stages = []
        for number, stage in enumerate(role.stages):
            mine = set(range(stage.start, stage.stop))
            if not mine & left_out:
                stages.append(number)
            elif mine - left_out:
                raise ValueError(f"stage {number} holds more than what is skipped: {skipped}")
        exact = next(n for n, number in enumerate([*stages, -1]) if n != number)
        if not exact:
            raise ValueError(f"the first stage cannot be skipped: {skipped}")
        return cls(tuple(stages), exact)


class Drafted:
    """What the target's own leading stages have computed for a draft, by scratch row.

    Attributes:
        exact: how many of the stages lead; 0: nothing was drafted with them.
    """

    def __init__(self) -> None:
        self.exact = 0
        self._places: dict[tuple[int, int], int] = {}
        self._hidden: list[Floats] = []

    def add(self, rows: Rows, first: int, hidden: Floats) -> None:
        """Rows that were run, to scratch rows from `first` on."""
        for number, (token, parent) in enumerate(zip(rows.tokens, rows.parents, strict=True)):
            self._places[parent, int(token)] = first + number
        self._hidden.append(hidden)

    def place(self, parent: int, token: int) -> int:
        """The scratch row of a token below another's, or `NOWHERE`."""
        return self._places.get((parent, token), NOWHERE)

    def hidden(self, places: Sequence[int]) -> Floats:
        """[n, D] hidden rows behind the leading stages."""
        return np.concatenate(self._hidden)[places]
