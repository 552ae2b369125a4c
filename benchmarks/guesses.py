"""A draft model with drafts of a given quality, whose calls take the time of real ones."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgespec.runtime.drafters import ModelCalls
from edgespec.runtime.drafters.ranking import Candidates
from edgespec.runtime.execution.feeds import START

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgespec.runtime.execution.feeds import Rows
    from edgespec.runtime.execution.runner import Runner
    from edgespec.runtime.execution.steps import Steps

_SECOND = 0.5  # of the cases in which the first guess is wrong
_GUESSES = 4


@dataclass(frozen=True)
class GuessedText:
    """The text to draft, and the quality of drafts.

    Attributes:
        tokens: tokens of prompt and output.
        acceptance: share of first guesses that are correct; in half of the other cases, the second
            guess is.
    """

    tokens: Sequence[int]
    acceptance: float

    @property
    def vocab_size(self) -> int:
        """A number that exceeds all ids of the text and of wrong guesses."""
        return max(self.tokens) + _GUESSES


class GuessedCalls(ModelCalls):
    """A draft model's calls, with drafts of a given quality instead of its own.

    Args:
        runner: the model's runner, for realistic times of calls.
        text: the text to draft.
    """

    def __init__(self, runner: Runner, text: GuessedText) -> None:
        super().__init__(runner)
        self._guessed = text
        self._start = 0
        self._branches: list[list[int]] = []  # of the scratch rows

    def feed(self, text: Sequence[int]) -> Steps[Candidates]:
        """See `Calls`."""
        yield from super().feed(text)
        self._start, self._branches = len(text), []
        return self._guesses([[]])

    def level(self, rows: Rows) -> Steps[Candidates]:
        """See `Calls`."""
        yield from super().level(rows)
        above = [[] if row == START else self._branches[row] for row in rows.parents]
        branches = [[*path, int(token)] for path, token in zip(above, rows.tokens, strict=True)]
        self._branches += branches
        return self._guesses(branches)

    def keep(self, text: Sequence[int], drafts: Sequence[int]) -> None:
        """See `Calls`."""
        super().keep(text, drafts)
        self._start += len(text)
        self._branches = [self._branches[row][len(text) :] for row in drafts]

    def _guesses(self, branches: list[list[int]]) -> Candidates:
        text, p = self._guessed.tokens, self._guessed.acceptance
        ids = []
        for branch in branches:
            place = self._start + len(branch)
            dice = random.Random(place)
            guesses = [max(text) + 1 + number for number in range(_GUESSES)]
            first, second = dice.random() < p, dice.random() < _SECOND
            known = place < len(text) and list(text[self._start : place]) == branch
            if known and (first or second):
                guesses[0 if first else 1] = text[place]
            ids.append([guess % self._guessed.vocab_size for guess in guesses])
        shares = [p, (1 - p) * _SECOND, *[(1 - p) * (1 - _SECOND) / 2] * 2]
        logits = np.log(np.array([shares] * len(ids), np.float32))
        return Candidates(np.array(ids, np.int64), logits, np.zeros(len(ids), np.float32))
