"""What a draft source must offer. One file per source implements it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgespec.runtime.arrays import Floats
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import TokenTree
from edgespec.runtime.trees.walk import Verdict


@dataclass(frozen=True)
class TreeBudget:
    """How large a tree may be, and what its parts must promise.

    Attributes:
        max_nodes: nodes in all; 0 means plain decoding.
        max_depth: tokens from the root to the deepest node.
        width: nodes that are expanded per level, and children that each may have; 1 is a chain.
        least_gain: accepted tokens that a further level of a draft model must promise to be worth
            its call.
        least_value: accepted tokens that a node must promise to be worth its row.
        remaining: tokens that the text gets at most.
    """

    max_nodes: int
    max_depth: int
    width: int
    least_gain: float = 0.0
    least_value: float = 0.0
    remaining: int = sys.maxsize


class Drafter(Protocol):
    """Guesses continuations; it can be wrong, but never changes the text."""

    @property
    def name(self) -> str:
        """What statistics call it."""

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """A new text starts; `sampler` is the target's."""

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """Guess what follows `text`, whose last token is the pending one (the tree's root)."""

    def ahead(self) -> bool:
        """Draft a step below what was drafted last, while its verification is under way.

        Returns:
            Whether there was something to do, and may be more.
        """

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """Learn from a verification, whosever draft it was.

        Args:
            verdict: how the text goes on.
            tree: what was verified behind the text of the last `draft`.
            logits: [n + 1 or more, V] of its rows, valid during this call.
        """
