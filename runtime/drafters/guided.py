"""Drafts of a text that follows a grammar: what it forces, and nothing that it forbids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgespec.runtime.drafters.base import Drafter, TreeBudget
from edgespec.runtime.feeds import Floats
from edgespec.runtime.proposal import Proposal
from edgespec.runtime.sampling import Sampler
from edgespec.runtime.tree import ROOT, TokenTree
from edgespec.runtime.verify import Verdict

if TYPE_CHECKING:
    from edgespec.runtime.guide import Guide

_TRUST = 0.95  # a grammar forces bytes: the target may cut them into other tokens


class GuidedDrafter:
    """Another drafter's proposals, as far as the grammar lets them come true, and what it forces.

    Args:
        drafter: guesses without knowing the grammar.
        guide: of the text; who chooses moves it on.
    """

    def __init__(self, drafter: Drafter, guide: Guide) -> None:
        self.name = drafter.name
        self._drafter = drafter
        self._guide = guide

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`."""
        self._drafter.begin(prompt, sampler)

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Drafter`."""
        proposal = self._drafter.draft(text, budget)
        kept = Proposal(proposal.forecast, proposal.begun)
        if budget.max_nodes < 1:
            return kept
        node, value = ROOT, 1.0
        for token in self._guide.forced()[: min(budget.max_nodes, budget.max_depth)]:
            value *= _TRUST
            node = kept.add(node, token, value, "grammar")
        self._keep_valid(proposal, kept)
        return kept.best(budget.max_nodes, proposal.forecast)

    def ahead(self) -> bool:
        """See `Drafter`."""
        return self._drafter.ahead()

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`."""
        self._drafter.observe(verdict, tree, logits)

    def _keep_valid(self, proposal: Proposal, kept: Proposal) -> None:
        """Add the nodes that the grammar allows where they stand."""
        numbers, branches = {ROOT: ROOT}, {ROOT: list[int]()}
        for node, parent in enumerate(proposal.parents):
            if parent not in numbers:  # the grammar has ended that branch
                continue
            branch = [*branches[parent], proposal.tokens[node]]
            if self._guide.valid(branch) == len(branch):
                branches[node] = branch
                numbers[node] = kept.add(
                    numbers[parent], proposal.tokens[node], proposal.values[node],
                    proposal.sources[node],
                )  # fmt: skip
