"""The contract of draft sources. Each is a file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgespec.runtime.sequences.sequence import Sequence as Tokens
from edgespec.runtime.speculation.generation import Generation
from edgespec.runtime.speculation.plan import Plan


class Drafter(Protocol):
    """Proposes nodes; they may be wrong, but they never change the tokens."""

    @property
    def name(self) -> str:
        """Name of the source in options and statistics."""

    def begin(self, generation: Generation) -> None:
        """A generation begins."""

    def draft(self, plan: Plan) -> None:
        """Adds nodes to the proposals of a pass; those of cheaper sources are there already."""

    def observe(self, generation: Generation, tokens: Sequence[int]) -> None:
        """Learns from a verdict, whichever source drafted the tree.

        Args:
            generation: whose; the tokens are part of it already.
            tokens: its new tokens.
        """

    def end(self, generation: Generation) -> None:
        """A generation has ended."""

    def forget(self) -> None:
        """Forgets what earlier generations taught."""


class Store(Protocol):
    """Keeps what sequences have read beyond the process. It is used between passes."""

    def begin(self, sequence: Tokens) -> int:
        """A sequence begins: reads what is stored of it, but for its last token.

        Returns:
            The number of tokens that it has read now in addition.
        """

    def look(self, sequence: Tokens) -> None:
        """A sequence went on."""

    def end(self, sequence: Tokens) -> None:
        """A sequence has ended; its slots are still its own."""
