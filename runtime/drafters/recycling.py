"""Token recycling: what the target held likely after the same tokens before (Luo et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import Calibration
from edgespec.runtime.drafters.base import TreeBudget
from edgespec.runtime.drafters.successors import Successors
from edgespec.runtime.sampling.likeliest import likeliest_tokens
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import ROOT, TokenTree
from edgespec.runtime.trees.walk import Verdict

_RANKS = 8  # successors of a key
_SCORED = 4  # of these, the ranks that trees of usual width have
_FIRST_WORD = {2: 0.4, 1: 0.25}  # of the likeliest successor, by the tokens that the key matched

_Waiting = tuple[float, int, int, int]  # minus value, parent, rank, token


class RecyclingDrafter:
    """Grows a tree from a table of successors, which every verified row of the target renews.

    Rows off the accepted path teach as well as those on it. How often each rank of a key is right
    is counted at every token of the text, drafted or not.

    Args:
        successors: the table; outlives the text.
        calibration: acceptance by matched key tokens and rank.
    """

    name = "recycling"

    _sampler: Sampler  # from `begin` on

    def __init__(self, successors: Successors, calibration: Calibration) -> None:
        self._successors = successors
        self._calibration = calibration
        self._last = (0, 0)
        self._shares: list[float] = []  # of each node, what no child of another source has

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

        Best first; of each parent only the next successor waits in line. Beside children from
        another source a successor is worth less: most often it is right where they are too.
        """
        # With one token there is no pair; no pair in the table holds a negative token.
        self._last = (text[-2] if len(text) > 1 else -1, text[-1])
        waiting: list[_Waiting] = []
        self._shares = [proposal.share_left(node) for node in range(ROOT, len(proposal))]
        depths = [0]
        for parent in proposal.parents:
            depths.append(depths[parent + 1] + 1)
        for node, depth in enumerate(depths, ROOT):
            if depth < budget.max_depth:
                self._wait(waiting, proposal, node, 0, budget)
        while waiting and len(proposal) < budget.max_nodes:
            negative, parent, rank, token = heappop(waiting)
            new = len(proposal)
            if proposal.add(parent, token, -negative, self.name) == new:
                depths.append(depths[parent + 1] + 1)
                self._shares.append(1.0)
                if depths[-1] < budget.max_depth:
                    self._wait(waiting, proposal, new, 0, budget)
            if rank + 1 < budget.width:
                self._wait(waiting, proposal, parent, rank + 1, budget)

    def ahead(self) -> bool:
        """See `Drafter`: there is nothing to do."""
        return False

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`."""
        previous, token = self._last
        for following in verdict.tokens:
            successors, matched = self._successors.after(previous, token)
            for rank, successor in enumerate(successors[:_SCORED]):
                self._calibration.observe(matched * _RANKS + rank, successor == following)
            previous, token = token, following
        tokens = [self._last[1], *tree.tokens.tolist()]
        before = [self._last[0], *(tokens[parent + 1] for parent in tree.parents.tolist())]
        vocab_size = self._sampler.vocab_size
        best = likeliest_tokens(logits[: len(tokens)], vocab_size, min(_RANKS, vocab_size))
        self._successors.learn(before, tokens, best)

    def _list(self, proposal: Proposal, node: int) -> tuple[Sequence[int], int]:
        """What may follow a node, and how many tokens of the key matched."""
        if node == ROOT:
            return self._successors.after(*self._last)
        parent = proposal.parents[node]
        previous = self._last[1] if parent == ROOT else proposal.tokens[parent]
        return self._successors.after(previous, proposal.tokens[node])

    def _wait(
        self, waiting: list[_Waiting], proposal: Proposal, parent: int, rank: int,
        budget: TreeBudget,
    ) -> None:  # fmt: skip
        successors, matched = self._list(proposal, parent)
        if rank < len(successors):
            word = _FIRST_WORD[matched] / (rank + 1) ** 1.5
            edge = self._calibration.acceptance(matched * _RANKS + rank, word)
            value = proposal.value(parent) * edge * self._shares[parent + 1]
            if value >= budget.least_value:
                heappush(waiting, (-value, parent, rank, successors[rank]))
