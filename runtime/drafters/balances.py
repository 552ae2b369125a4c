"""Whether a model's drafts bring more than their time, by trials of whole rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.runtime.drafters.reader import FIRST_WAIT, LONGEST_WAIT
from edgespec.runtime.speculation.generation import Generation
from edgespec.runtime.speculation.tree import ROOT, Proposal

_FIRST_CREDIT = 2.0  # tokens that a model may lose before it is known to pay
_MOST_CREDIT = 4.0  # so that it is soon found out when other texts come
_LEAST_CREDIT = -1.0  # so that two good rounds make up for any number of bad ones


@dataclass(frozen=True, eq=False)
class Alternative:
    """What a round would be without a model's drafts.

    Attributes:
        cheaper: the tree that would have been verified.
        price: tokens that the seconds of the model's drafts would have brought.
    """

    cheaper: Proposal
    price: float

    def gain(self, tokens: Sequence[int]) -> float:
        """Returns how many tokens the drafts brought beyond it, less their price.

        Args:
            tokens: the new tokens of the round, at least one.
        """
        without = 0
        node: int | None = ROOT
        for token in tokens:
            if node is None:
                break
            without += 1
            node = self.cheaper.child(node, token)
        return len(tokens) - without - self.price


class Balance:
    """What rounds with a model's drafts gained, added up over all texts between two bounds.

    It shows soon when the sum turns (cumulative sums: Page, Continuous inspection schemes, 1954).
    """

    def __init__(self) -> None:
        self._credit = _FIRST_CREDIT
        self._idle = 0  # rounds since the model drafted
        self._wait = FIRST_WAIT

    def begin_round(self) -> bool:
        """Counts a round; returns whether the model may draft in it."""
        self._idle += 1
        return self._credit >= 0 or self._idle >= self._wait

    def learn(self, gain: float) -> None:
        """Learns what a round gained, in tokens; see `Alternative.gain`."""
        was_tried = self._credit < 0 and self._idle  # 0 behind the round's first sequence
        self._credit = min(max(self._credit + gain, _LEAST_CREDIT), _MOST_CREDIT)
        self._idle = 0
        if self._credit >= 0:
            self._wait = FIRST_WAIT
        elif was_tried:
            self._wait = min(2 * self._wait, LONGEST_WAIT)


class Balances:
    """The balances of a model: of greedy texts and of sampled ones, which differ."""

    def __init__(self) -> None:
        self._balances = Balance(), Balance()

    def of(self, generation: Generation) -> Balance:
        """Returns the balance of a generation's way to choose tokens."""
        return self._balances[generation.is_sampled]
