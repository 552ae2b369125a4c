"""The contract of draft sources. Each is a file of its own."""

from __future__ import annotations

from typing import Protocol

from edgespec.runtime.sequences.pool import TokenSequence
from edgespec.runtime.speculation.generation import Generation, Reading
from edgespec.runtime.speculation.plan import PassPlan


class Drafter(Protocol):
    """Proposes nodes; they may be wrong, but they never change the tokens."""

    @property
    def name(self) -> str:
        """Name of the source in options and statistics."""

    def begin(self, generation: Generation) -> bool:
        """A generation begins; returns whether this source drafts for it."""

    def draft(self, plan: PassPlan) -> None:
        """Adds nodes to the proposals of a pass; those of cheaper sources are there already."""

    def observe(self, generation: Generation, reading: Reading) -> None:
        """Learns from a pass that brought new tokens, whichever source drafted the tree."""

    def end(self, generation: Generation) -> None:
        """A generation that it drafts for has ended."""

    def forget(self) -> None:
        """Forgets what earlier generations taught."""


class SequenceStore(Protocol):
    """Keeps what sequences have read beyond the process. It is used between passes."""

    def begin(self, sequence: TokenSequence) -> int:
        """A sequence begins: reads what is stored of it, but for its last token.

        Returns:
            The number of tokens that it has read now in addition.
        """

    def look(self, sequence: TokenSequence) -> None:
        """A sequence went on."""

    def end(self, sequence: TokenSequence) -> None:
        """A sequence has ended; its slots are still its own."""
