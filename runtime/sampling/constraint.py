"""The contract of what restricts the tokens of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgespec.runtime.arrays import Mask


class Constraint(Protocol):
    """The state of one text under a restriction.

    What it allows depends on the tokens of the text alone, so that drafts cannot change a text.
    """

    def allowed(self) -> Mask | None:
        """Returns which tokens may come next, [V], at least one; None if all may.

        Raises:
            InputError: if there is none.
        """
        ...

    def advance(self, token: int) -> None:
        """Moves on by one token of the text, which was allowed.

        Raises:
            InputError: if no text can follow.
        """
        ...

    def forced(self) -> list[int]:
        """Returns the tokens that must come next; often there are none."""
        ...

    def valid(self, tokens: Sequence[int]) -> int:
        """Returns how many of these tokens, in this order, may come next."""
        ...
