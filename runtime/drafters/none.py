"""Plain decoding, as a draft source that never proposes anything."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.base import TreeBudget
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import TokenTree
from edgespec.runtime.trees.walk import Verdict


class NoDrafter:
    """Makes empty proposals only, so every round yields the target's next token."""

    name = "none"

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`."""

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Drafter`."""
        return Proposal()

    def draft_ahead(self) -> bool:
        """See `Drafter`: there is nothing to do."""
        return False

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`."""
