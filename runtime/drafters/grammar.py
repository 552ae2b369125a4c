"""Drafts of a text that follows a grammar: what it forces, and nothing that it forbids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.base import Drafter, TreeBudget
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import ROOT, TokenTree
from edgespec.runtime.trees.walk import Verdict

if TYPE_CHECKING:
    from edgespec.runtime.sampling.guide import Guide

_TRUST = 0.95  # a grammar forces bytes: the target may cut them into other tokens


def forced(guide: Guide, budget: TreeBudget) -> Proposal:
    """A chain of what the grammar goes on with, whatever the target thinks; often nothing."""
    proposal, node, value = Proposal(), ROOT, 1.0
    for token in guide.forced()[: min(budget.max_nodes, budget.max_depth)]:
        value *= _TRUST
        node = proposal.add(node, token, value, "grammar")
    return proposal


def possible(guide: Guide, proposal: Proposal) -> Proposal:
    """The nodes of a proposal that the grammar allows where they stand."""
    kept = Proposal(begun=proposal.begun)
    numbers, branches = {ROOT: ROOT}, {ROOT: list[int]()}
    for node, parent in enumerate(proposal.parents):
        if parent not in numbers:  # the grammar has ended that branch
            continue
        token, value, source = proposal.tokens[node], proposal.values[node], proposal.sources[node]
        branch = [*branches[parent], token]
        if guide.valid(branch) == len(branch):
            branches[node] = branch
            numbers[node] = kept.add(numbers[parent], token, value, source)
    return kept


class GuidedDrafter:
    """What a grammar forces, and another drafter's proposals as far as it lets them come true.

    Args:
        drafter: guesses without knowing the grammar, and plans nothing.
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
        joined = forced(self._guide, budget)
        joined.begun = proposal.begun
        joined.graft(possible(self._guide, proposal))
        return joined.best(budget.max_nodes)

    def ahead(self) -> bool:
        """See `Drafter`."""
        return self._drafter.ahead()

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`."""
        self._drafter.observe(verdict, tree, logits)
