"""What a text knows of the others that share its rounds."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from edgespec.runtime.trees.walk import Verdict


@dataclass(frozen=True)
class Company:
    """The other texts of a round, most of which share its pass.

    Attributes:
        texts: number of those that share it.
        rows: number of rows that these verify.
        tokens: number of tokens that all are expected to gain.
        seconds: time that the drafts of all are expected to take, and passes that are not shared
            with this text; of calls that texts share, each takes an equal part.
        drafting: number of texts that share calls of the draft model.
        coming: number of texts whose prompts are being read.
        room: number of rows that the pass has left.
    """

    texts: int = 0
    rows: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    drafting: int = 0
    coming: int = 0
    room: int = sys.maxsize


ALONE = Company()
"""No other texts."""


@dataclass(frozen=True)
class PassCost:
    """What a call took, for all texts that shared it.

    Attributes:
        texts: number of texts.
        rows: number of rows of all texts.
        seconds: duration.
    """

    texts: int
    rows: int
    seconds: float

    @property
    def share(self) -> float:
        """Seconds of each text."""
        return self.seconds / self.texts


@dataclass(frozen=True)
class SharedVerdict(Verdict):
    """The result of a verification in a pass that other texts shared.

    Attributes:
        cost: what the pass took.
    """

    cost: PassCost
