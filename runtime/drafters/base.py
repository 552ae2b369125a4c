"""The contract of draft sources. Each is a file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgespec.runtime.arrays import Floats
from edgespec.runtime.sequences.model import Rows
from edgespec.runtime.sequences.sequence import Sequence as Tokens
from edgespec.runtime.speculation.generation import Generation
from edgespec.runtime.speculation.plan import Plan


@dataclass(frozen=True, eq=False, slots=True)
class Reading:
    """What a pass read of a sequence, and what came of it.

    Attributes:
        rows: tokens that were read, then the nodes of the verified tree.
        logits: [nodes + 1, V] float32 of the last token read and of the nodes.
        tokens: the new tokens, which are part of the sequence already.
    """

    rows: Rows
    logits: Floats
    tokens: Sequence[int]


class Drafter(Protocol):
    """Proposes nodes; they may be wrong, but they never change the tokens."""

    @property
    def name(self) -> str:
        """Name of the source in options and statistics."""

    def begin(self, generation: Generation) -> None:
        """A generation begins."""

    def draft(self, plan: Plan) -> None:
        """Adds nodes to the proposals of a pass; those of cheaper sources are there already."""

    def observe(self, generation: Generation, reading: Reading) -> None:
        """Learns from a pass that brought new tokens, whichever source drafted the tree."""

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
