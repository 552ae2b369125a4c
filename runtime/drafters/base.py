"""The interface of draft sources. Each source is implemented in a file of its own."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgespec.runtime.arrays import Floats
from edgespec.runtime.execution.steps import Steps, finished
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.trees.company import ALONE, Company
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import TokenTree
from edgespec.runtime.trees.walk import Verdict

LATEST_WEIGHT = 0.1
"""Weight of the latest round, or of a draft's latest level, in exponential moving averages."""


@dataclass(frozen=True)
class TreeBudget:
    """Limits of a draft tree, and what its parts must promise.

    Attributes:
        max_nodes: largest number of nodes; 0 means plain decoding.
        max_depth: largest number of tokens on a path below the root.
        width: number of nodes that are expanded per level, and of children that each may have; 1
            gives a chain, which some targets need (`Role.trees`).
        least_gain: expected accepted tokens that a further level of a draft model must add to be
            worth its call.
        least_value: expected accepted tokens that a node must add to be worth its row.
        remaining: largest number of tokens that the text can still get.
        company: the other texts of the round.
    """

    max_nodes: int
    max_depth: int
    width: int
    least_gain: float = 0.0
    least_value: float = 0.0
    remaining: int = sys.maxsize
    company: Company = ALONE


class Drafter(Protocol):
    """Proposes continuations. They may be wrong, but they never change the text."""

    @property
    def name(self) -> str:
        """Name of the source in statistics."""

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """Start a new text; `sampler` is the target's."""

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """Propose what follows `text`. Its last token is the pending one, the root of the tree."""

    def draft_ahead(self) -> bool:
        """Draft one step below the last proposal, while that is being verified.

        Returns:
            Whether anything was drafted; if so, there may be more to do.
        """

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """Learn from a verification, whichever source drafted the tree.

        Args:
            verdict: accepted nodes and new tokens.
            tree: the verified tree, below the text of the last `draft`.
            logits: [n + 1 or more, V] logits of its rows, valid during this call.
        """


class SteppingDrafter(ABC):
    """A drafter that waits for calls of a model, which texts can share."""

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Drafter`."""
        return finished(self.drafting(text, budget))

    @abstractmethod
    def drafting(self, text: Sequence[int], budget: TreeBudget) -> Steps[Proposal]:
        """Takes the steps to what `draft` returns."""


def drafting(drafter: Drafter, text: Sequence[int], budget: TreeBudget) -> Steps[Proposal]:
    """Takes the steps of any drafter; see `SteppingDrafter`."""
    if isinstance(drafter, SteppingDrafter):
        return drafter.drafting(text, budget)
    return in_one_step(drafter.draft, text, budget)


def in_one_step(
    draft: Callable[[Sequence[int], TreeBudget], Proposal], text: Sequence[int], budget: TreeBudget
) -> Steps[Proposal]:
    """Drafts without waiting for anything."""
    yield from ()
    return draft(text, budget)


class CallingDrafter(Drafter, Protocol):
    """A drafter that calls a model, whose calls have a price."""

    @property
    def fed(self) -> Sequence[int]:
        """Rows of each call of the last `draft` that fed text to the model."""

    @property
    def levels(self) -> Sequence[int]:
        """Rows of each of its further calls."""

    def unread(self, text: Sequence[int]) -> list[int]:
        """Returns the rows of each call that feeds the model what it has not read of a text."""
