"""What a draft source must offer. One file per source implements it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgespec.runtime.sampling import Sampler
from edgespec.runtime.tree import TokenTree
from edgespec.runtime.verify import Verdict


@dataclass(frozen=True)
class TreeBudget:
    """How large a tree may be.

    Attributes:
        max_nodes: nodes in all; 0 means plain decoding.
        max_depth: tokens from the root to the deepest node.
        width: nodes that are expanded per level, and children that each may have; 1 is a chain.
    """

    max_nodes: int
    max_depth: int
    width: int


class Drafter(Protocol):
    """Guesses continuations; it can be wrong, but never changes the text."""

    @property
    def name(self) -> str:
        """What statistics call it."""

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """A new text starts; `sampler` is the target's."""

    def draft(self, text: Sequence[int], budget: TreeBudget) -> TokenTree:
        """Guess what follows `text`, whose last token is the pending one (the tree's root)."""

    def observe(self, verdict: Verdict) -> None:
        """Learn what became of the tree that was drafted last."""
