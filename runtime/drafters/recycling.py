"""Token recycling: drafts from what the target once held likely after the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from edgespec.runtime.drafters.acceptance import Calibration
from edgespec.runtime.drafters.base import Reading
from edgespec.runtime.drafters.successors import WIDTH, Successors
from edgespec.runtime.sampling.likeliest import likeliest_tokens
from edgespec.runtime.speculation.generation import Generation
from edgespec.runtime.speculation.plan import Plan, Scheduled
from edgespec.runtime.trees.tree import ROOT

_PRIORS = {2: 0.4, 1: 0.25}  # prior acceptance of the likeliest successor, by matched tokens
_COUNTED = 4  # successors whose acceptance is counted; the priors of the others are small

_Queued = tuple[float, int, int, Sequence[int], Sequence[float]]


class RecyclingDrafter:
    """Grows trees from a table of successors, which every verified row of the target updates.

    Luo et al., Token Recycling, 2024. Rejected rows teach as much as accepted ones. The acceptance
    of each rank is counted at every token of a sequence, drafted or not.

    Args:
        first: gives the table to begin with, which may hold what was learned before.

    Attributes:
        successors: the table; a new one after `forget`.
    """

    name = "recycling"

    def __init__(self, first: Callable[[], Successors]) -> None:
        self._first = first
        self.forget()

    def begin(self, generation: Generation) -> None:
        """See `Drafter`."""

    def draft(self, plan: Plan) -> None:
        """See `Drafter`. Branches grow below all nodes that are there."""
        for part in plan.drafting:
            if part.generation.drafts_by(self.name):
                self._grow(part, plan.least_value)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Drafter`."""
        if not generation.drafts_by(self.name):
            return
        rows, text = reading.rows, generation.tokens
        last = len(text) - len(reading.tokens) - 1  # place of the last token that was read
        previous = text[last - 1] if last else -1
        self._count(generation, previous, reading)
        tokens = [rows.tokens[row] for row in rows.wanted]
        parents = [rows.parents[row] for row in rows.wanted]
        before = [previous, *[rows.tokens[parent] for parent in parents[1:]]]
        vocab_size = generation.request.sampler.vocab_size
        best = likeliest_tokens(reading.logits, vocab_size, min(WIDTH, vocab_size))
        self.successors.learn(before, tokens, best)

    def end(self, generation: Generation) -> None:
        """See `Drafter`."""

    def forget(self) -> None:
        """See `Drafter`."""
        self.successors = self._first()
        self._calibrations = Calibration(), Calibration()  # of greedy and of sampled tokens

    def _count(self, generation: Generation, previous: int, reading: Reading) -> None:
        """Records which successors of each token the target has chosen."""
        calibration = self._calibrations[generation.is_sampled]
        token = reading.rows.tokens[reading.rows.wanted[0]]
        for following in reading.tokens:
            successors, matched = self.successors.after(previous, token)
            for rank, successor in enumerate(successors[:_COUNTED]):
                calibration.observe(matched * WIDTH + rank, successor == following)
            previous, token = token, following

    def _grow(self, part: Scheduled, least: float) -> None:
        """Adds the likeliest branches, the best first.

        Of each node only its next successor is in the queue. One is worth less beside children of
        another source, because most often both are right at once.
        """
        proposal, limits = part.proposal, part.generation.request.limits
        calibration, text = self._calibrations[part.generation.is_sampled], part.generation.tokens
        edges = {
            matched: [
                calibration.acceptance(matched * WIDTH + rank, prior / (rank + 1) ** 1.5)
                for rank in range(min(limits.width, WIDTH))
            ]
            for matched, prior in _PRIORS.items()
        }
        queue: list[_Queued] = []
        depths: list[int] = []

        def push(node: int) -> None:
            """Finds what may follow a node."""
            if depths[node + 1] == part.depth:
                return
            if node == ROOT:
                previous, token = text[-2] if len(text) > 1 else -1, text[-1]
            else:
                parent, token = proposal.parents[node], proposal.tokens[node]
                previous = text[-1] if parent == ROOT else proposal.tokens[parent]
            successors, matched = self.successors.after(previous, token)
            if matched:
                share = proposal.room(node)
                offer(node, 0, successors, [share * edge for edge in edges[matched]])

        def offer(node: int, rank: int, tokens: Sequence[int], values: Sequence[float]) -> None:
            if rank < len(values) and values[rank] >= least:
                heappush(queue, (-values[rank], node, rank, tokens, values))

        for node in range(ROOT, len(proposal)):
            depths.append(0 if node == ROOT else depths[proposal.parents[node] + 1] + 1)
            push(node)
        most = len(proposal) + part.most_nodes
        while queue and len(proposal) < most:
            _, parent, rank, tokens, values = heappop(queue)
            node = len(proposal)
            if proposal.add(parent, tokens[rank], values[rank], self.name) == node:
                depths.append(depths[parent + 1] + 1)
                push(node)
            offer(parent, rank + 1, tokens, values)
