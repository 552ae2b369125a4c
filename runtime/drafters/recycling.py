"""Token recycling: drafts from what the target once held likely after the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from edgespec.runtime.arrays import Floats
from edgespec.runtime.deployment.options import DEFAULT_TREE_WIDTH
from edgespec.runtime.drafters.acceptance import Calibration
from edgespec.runtime.drafters.base import TreeBudget
from edgespec.runtime.drafters.successors import WIDTH, Successors
from edgespec.runtime.sampling.likeliest import likeliest_tokens
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import ROOT, TokenTree
from edgespec.runtime.trees.walk import Verdict

_PRIORS = {2: 0.4, 1: 0.25}  # prior acceptance of the likeliest successor, by matched tokens

_Queued = tuple[float, int, int, int]  # negative value, parent, rank, token


class RecyclingDrafter:
    """Grows a tree from a table of successors, which every verified row of the target updates.

    Luo et al., Token Recycling, 2024. Rejected rows teach as much as accepted ones. The acceptance
    of each rank is counted at every token of the text, drafted or not.

    Args:
        successors: the table; it outlives the text.
        calibration: acceptance by number of matched key tokens and rank.
    """

    name = "recycling"

    _sampler: Sampler  # from `begin` on

    def __init__(self, successors: Successors, calibration: Calibration) -> None:
        self._successors = successors
        self._calibration = calibration
        self._last = (0, 0)
        # Of each node, the share of its value that no child of another source has.
        self._shares: list[float] = []

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`."""
        self._sampler = sampler

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Drafter`."""
        proposal = Proposal()
        self.extend(proposal, text, budget)
        return proposal

    def extend(self, proposal: Proposal, text: Sequence[int], budget: TreeBudget) -> None:
        """Add the likeliest branches below all nodes of a proposal, up to `budget.max_nodes`.

        The best are added first; of each parent only its next successor is in the queue. A
        successor is worth less beside children from another source, because most often both are
        right at once.
        """
        # A text of one token has no pair; the table has no pair with a negative token.
        self._last = (text[-2] if len(text) > 1 else -1, text[-1])
        queue: list[_Queued] = []
        self._shares = [proposal.share_left(node) for node in range(ROOT, len(proposal))]
        depths = [0]
        for parent in proposal.parents:
            depths.append(depths[parent + 1] + 1)
        for node, depth in enumerate(depths, ROOT):
            if depth < budget.max_depth:
                self._push(queue, proposal, node, 0, budget)
        while queue and len(proposal) < budget.max_nodes:
            negative, parent, rank, token = heappop(queue)
            new = len(proposal)
            if proposal.add(parent, token, -negative, self.name) == new:
                depths.append(depths[parent + 1] + 1)
                self._shares.append(1.0)
                if depths[-1] < budget.max_depth:
                    self._push(queue, proposal, new, 0, budget)
            if rank + 1 < budget.width:
                self._push(queue, proposal, parent, rank + 1, budget)

    def draft_ahead(self) -> bool:
        """See `Drafter`: there is nothing to do."""
        return False

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`."""
        previous, token = self._last
        for following in verdict.tokens:
            successors, matched = self._successors.after(previous, token)
            for rank, successor in enumerate(successors[:DEFAULT_TREE_WIDTH]):
                self._calibration.observe(matched * WIDTH + rank, successor == following)
            previous, token = token, following
        tokens = [self._last[1], *tree.tokens.tolist()]
        before = [self._last[0], *(tokens[parent + 1] for parent in tree.parents.tolist())]
        vocab_size = self._sampler.vocab_size
        best = likeliest_tokens(logits[: len(tokens)], vocab_size, min(WIDTH, vocab_size))
        self._successors.learn(before, tokens, best)

    def _successors_of(self, proposal: Proposal, node: int) -> tuple[Sequence[int], int]:
        """Returns the successors of a node, and how many tokens of the key matched."""
        if node == ROOT:
            return self._successors.after(*self._last)
        parent = proposal.parents[node]
        previous = self._last[1] if parent == ROOT else proposal.tokens[parent]
        return self._successors.after(previous, proposal.tokens[node])

    def _push(
        self, queue: list[_Queued], proposal: Proposal, parent: int, rank: int,
        budget: TreeBudget,
    ) -> None:  # fmt: skip
        successors, matched = self._successors_of(proposal, parent)
        if rank < len(successors):
            prior = _PRIORS[matched] / (rank + 1) ** 1.5
            edge = self._calibration.acceptance(matched * WIDTH + rank, prior)
            value = proposal.value(parent) * edge * self._shares[parent + 1]
            if value >= budget.least_value:
                heappush(queue, (-value, parent, rank, successors[rank]))
