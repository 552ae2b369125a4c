"""Drafting with some of a model's own stages: which ones run, and what verification reuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.bundle import Role
from edgespec.runtime.arrays import Floats
from edgespec.runtime.execution.feeds import START, Rows

NOWHERE = -2
"""In place of a scratch row: the row has not been run."""


@dataclass(frozen=True)
class StagePath:
    """The stages of a model that a draft runs.

    Attributes:
        stages: their numbers, ascending; the first and the last stage are among them.
        exact: how many of the first stages come before any that is left out: for the same rows
            they compute what the whole model does.
    """

    stages: tuple[int, ...]
    exact: int

    @classmethod
    def without(cls, role: Role, skipped: Sequence[int]) -> StagePath:
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
    """The rows that a draft has run through the target's leading stages, kept as scratch rows.

    A row is found again by the row before it and its token, so that verification does not compute
    it a second time.

    Attributes:
        exact: number of leading stages that were run; 0 if no draft used them.
    """

    def __init__(self) -> None:
        self.exact = 0
        self._places: dict[tuple[int, int], int] = {}
        self._hidden: list[Floats] = []
        self._features: list[Floats] = []

    def add(self, rows: Rows, first: int, hidden: Floats, features: Floats | None) -> None:
        """Note that these rows were run and lie in the scratch rows from `first` on.

        Args:
            rows: the rows.
            first: scratch row of the first.
            hidden: [n, D] hidden rows that the leading stages gave for them.
            features: [n, F] features that these stages gave; None if they give none.
        """
        for number, (token, parent) in enumerate(zip(rows.tokens, rows.parents, strict=True)):
            self._places[parent, int(token)] = first + number
        self._hidden.append(hidden)
        if features is not None:
            self._features.append(features)

    def places(self, rows: Rows) -> list[int]:
        """Returns the scratch row of each of a verification's rows, or `NOWHERE`."""
        places: list[int] = []
        for token, parent in zip(rows.tokens, rows.parents, strict=True):
            above = START if parent == START else places[parent]
            places.append(self._places.get((above, int(token)), NOWHERE))
        return places

    def hidden(self, places: Sequence[int]) -> Floats:
        """Returns the [n, D] hidden rows that the leading stages gave for these scratch rows."""
        return np.concatenate(self._hidden)[places]

    def features(self, places: Sequence[int]) -> Floats | None:
        """Returns the [n, F] features that the leading stages gave for these scratch rows."""
        return np.concatenate(self._features)[places] if self._features else None
