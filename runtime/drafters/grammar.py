"""Drafts for text that follows a grammar: with forced tokens, without forbidden ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.base import Drafter, SteppingDrafter, TreeBudget, drafting
from edgespec.runtime.execution.steps import Steps
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import ROOT, TokenTree
from edgespec.runtime.trees.walk import Verdict

if TYPE_CHECKING:
    from edgespec.runtime.sampling.constraint import Constraint

# Value of a forced token. A grammar forces bytes, which the target may split into other tokens.
_FORCED_VALUE = 0.95


def forced(grammar: Constraint, budget: TreeBudget) -> Proposal:
    """Returns a chain of the tokens that the grammar forces; often it is empty.

    It does not depend on what the target prefers.
    """
    proposal, node, value = Proposal(), ROOT, 1.0
    for token in grammar.forced()[: min(budget.max_nodes, budget.max_depth)]:
        value *= _FORCED_VALUE
        node = proposal.add(node, token, value, "grammar")
    return proposal


def possible(grammar: Constraint, proposal: Proposal) -> Proposal:
    """Returns the nodes of a proposal that the grammar allows at their places."""
    kept = Proposal(begun=proposal.begun)
    numbers, branches = {ROOT: ROOT}, {ROOT: list[int]()}
    for node, parent in enumerate(proposal.parents):
        if parent not in numbers:  # the grammar forbids its parent
            continue
        token, value, source = proposal.tokens[node], proposal.values[node], proposal.sources[node]
        branch = [*branches[parent], token]
        if grammar.valid(branch) == len(branch):
            branches[node] = branch
            numbers[node] = kept.add(numbers[parent], token, value, source)
    return kept


class GrammarDrafter(SteppingDrafter):
    """Tokens that a grammar forces, and those proposals of another drafter that it allows.

    Args:
        drafter: proposes without knowing the grammar, and does not plan.
        grammar: state of the text in its grammar, advanced by whoever chooses the tokens.
    """

    def __init__(self, drafter: Drafter, grammar: Constraint) -> None:
        self.name = drafter.name
        self._drafter = drafter
        self._grammar = grammar

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`."""
        self._drafter.begin(prompt, sampler)

    def drafting(self, text: Sequence[int], budget: TreeBudget) -> Steps[Proposal]:
        """See `Drafter.draft`."""
        proposal = yield from drafting(self._drafter, text, budget)
        joined = forced(self._grammar, budget)
        joined.begun = proposal.begun
        joined.graft(possible(self._grammar, proposal))
        return joined.best(budget.max_nodes)

    def draft_ahead(self) -> bool:
        """See `Drafter`."""
        return self._drafter.draft_ahead()

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`."""
        self._drafter.observe(verdict, tree, logits)
