"""Drafts of sequences that follow a grammar: with forced tokens, without forbidden ones."""

from __future__ import annotations

from edgespec.runtime.sampling.constraint import Constraint
from edgespec.runtime.speculation.generation import Generation, Reading
from edgespec.runtime.speculation.plan import PassPlan
from edgespec.runtime.speculation.tree import ROOT, Proposal

# Value of a forced token. A grammar forces bytes, which the target may split into other tokens.
_FORCED_VALUE = 0.95


class GrammarDrafter:
    """Adds the tokens that a grammar forces, and takes out nodes that it forbids.

    An engine asks it behind the cheap sources and behind the dear ones.
    """

    name = "grammar"

    def begin(self, generation: Generation) -> bool:
        """See `Drafter`."""
        return generation.drafts and generation.request.grammar is not None

    def draft(self, plan: PassPlan) -> None:
        """See `Drafter`."""
        for part in plan.drafting:
            grammar = part.generation.request.grammar
            if grammar is not None and self in part.generation.drafters:
                most = min(part.depth, part.most_nodes)
                part.proposal = _fitting(grammar, part.proposal, most)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Drafter`."""

    def end(self, generation: Generation) -> None:
        """See `Drafter`."""

    def forget(self) -> None:
        """See `Drafter`."""


def _fitting(grammar: Constraint, proposal: Proposal, most: int) -> Proposal:
    """Returns what the grammar forces, and the nodes of a proposal that it allows."""
    joined = Proposal()
    node = ROOT
    value = 1.0
    for token in grammar.forced()[:most]:
        value *= _FORCED_VALUE
        node = joined.add(node, token, value, GrammarDrafter.name)
    numbers = {ROOT: ROOT}
    branches = {ROOT: list[int]()}
    for node, parent in enumerate(proposal.parents):
        if parent not in numbers:  # the grammar forbids its parent
            continue
        token = proposal.tokens[node]
        value = proposal.values[node]
        source = proposal.sources[node]
        branch = [*branches[parent], token]
        if grammar.valid(branch) == len(branch):
            branches[node] = branch
            numbers[node] = joined.add(numbers[parent], token, value, source)
    return joined
