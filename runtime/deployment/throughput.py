"""Predicts tokens per second of decoding strategies from measured costs, without a text.

The text is described by one number, the acceptance: the share of the draft model's tokens that are
correct. A draft is a chain of n tokens, and its round yields sum(acceptance^i, i = 0..n) tokens,
including the target's own one (Leviathan et al., 2023). Only the measured costs of calls count, not
Python's time between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edgespec.runtime.curve import Seconds
from edgespec.runtime.shapes import FINE_ROWS

USUAL_ACCEPTANCE = 0.75
"""The share of correct draft tokens that is assumed where nothing better is known."""


def plain(verify: Seconds) -> float:
    """Returns the tokens per second without drafts."""
    return 1 / verify(1)


@dataclass(frozen=True)
class Pair:
    """The costs of a target and a draft model; drafts are chains of the best length, 1 or more.

    Attributes:
        verify: seconds of the target's pass by its rows.
        draft: seconds of the draft model's call of one row, which drafts one token.
        longest: maximum number of tokens of a draft.
    """

    verify: Seconds
    draft: float
    longest: int

    def serial(self, acceptance: float) -> float:
        """Returns the tokens per second if each draft is made before its verification."""
        return self._best(acceptance, lambda n: n * self.draft + self.verify(n + 1))

    def overlap(self, acceptance: float, slowdown: float) -> float:
        """Returns the tokens per second if the next draft is made while this one is verified.

        The next draft is useful if all n tokens of this one and the predicted token after them are
        correct: acceptance^(n + 1). That prediction takes one call; the rest of the target's pass
        saves drafting time. Real drafters save more: they also draft for other outcomes, and keep
        a draft that was begun.

        Args:
            acceptance: the share of correct draft tokens, 0 to 1.
            slowdown: factor by which simultaneous drafting slows the target's pass, 1 or more.
        """

        def seconds(n: int) -> float:
            pass_ = slowdown * self.verify(n + 1)
            saved = min(n * self.draft, max(0.0, pass_ - self.draft))
            return pass_ + n * self.draft - acceptance ** (n + 1) * saved

        return self._best(acceptance, seconds)

    def _best(self, acceptance: float, seconds: Callable[[int], float]) -> float:
        """Returns the highest rate over all draft lengths, given the seconds of a round."""
        return max(
            sum(acceptance**i for i in range(n + 1)) / seconds(n) for n in _lengths(self.longest)
        )


def _lengths(longest: int) -> Iterator[int]:
    """Yields the draft lengths that fill a bucket with the pending token, and the longest one."""
    for rows in FINE_ROWS[1:]:
        yield min(rows - 1, longest)
        if rows > longest:
            break
