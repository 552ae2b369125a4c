"""Tokens per second before there is a text: which way of decoding suits a machine.

What a text would bring is one number, the acceptance: the share of the draft model's best guesses
that are right. A draft is a chain of n guesses, and its round brings sum(acceptance^i, i = 0..n)
tokens, the target's own one included (Leviathan et al., 2023). Calls cost what was measured;
Python's time between them is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edgespec.runtime.curve import Seconds
from edgespec.runtime.shapes import FINE_ROWS


def plain(verify: Seconds) -> float:
    """Tokens per second without drafts."""
    return 1 / verify(1)


@dataclass(frozen=True)
class Pair:
    """A target and a draft model, with chains as long as brings most; not empty ones.

    Attributes:
        verify: cost of the target's pass.
        draft: seconds of the draft model's call of one row, which makes one guess.
        longest: guesses of a draft at most.
    """

    verify: Seconds
    draft: float
    longest: int

    def serial(self, acceptance: float) -> float:
        """Tokens per second where a draft comes before its verification."""
        return self._best(acceptance, lambda n: n * self.draft + self.verify(n + 1))

    def overlap(self, acceptance: float, slowdown: float) -> float:
        """Tokens per second where the next draft is made while this one is verified.

        It is of use if the whole draft was right, and the guess of the token behind it, too:
        acceptance^(n + 1). That guess is one call; what is left of the pass saves time. In truth
        more is saved: drafters also work below other outcomes, and keep a draft that was begun.

        Args:
            acceptance: 0 to 1.
            slowdown: of the target's pass beside the draft's calls, 1 or more.
        """

        def seconds(n: int) -> float:
            pass_ = slowdown * self.verify(n + 1)
            saved = min(n * self.draft, max(0.0, pass_ - self.draft))
            return pass_ + n * self.draft - acceptance ** (n + 1) * saved

        return self._best(acceptance, seconds)

    def _best(self, acceptance: float, seconds: Callable[[int], float]) -> float:
        """The highest rate of all lengths of a draft, by seconds of a round."""
        return max(
            sum(acceptance**i for i in range(n + 1)) / seconds(n) for n in _lengths(self.longest)
        )


def _lengths(longest: int) -> Iterator[int]:
    """Guesses that fill a bucket with the pending token, and the longest draft."""
    for rows in FINE_ROWS[1:]:
        yield min(rows - 1, longest)
        if rows > longest:
            break
