"""Drafts by a model that predicts several tokens in one call (An et al., PARD, 2025)."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import edge_cell
from edgespec.runtime.drafters.growth import USUAL_READING, Ids
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.drafters.ranking import rank
from edgespec.runtime.sequences.model import Model
from edgespec.runtime.speculation.generation import Generation, Reading
from edgespec.runtime.speculation.plan import Plan
from edgespec.runtime.speculation.schedule import Scheduled
from edgespec.runtime.speculation.tree import ROOT, Proposal

_MOST = 16  # tokens that one call predicts; models were trained for 8 to 12
_LATEST_WEIGHT = 0.1  # of what a position added, in the moving average of it


class Edge(NamedTuple):
    """A candidate for one position, below whichever token is chosen before it.

    Attributes:
        token: its token.
        value: probability that it is accepted if the tokens before it are.
        cell: its calibration cell.
    """

    token: int
    value: float
    cell: int


class Node(NamedTuple):
    """A node of a tree whose nodes of one depth all have the same candidates as children.

    Attributes:
        parent: number of the node above it, `ROOT` below the last token.
        depth: number of drafted tokens before it.
        place: index of its edge among those of its depth.
        value: product of the values of the edges that lead to it.
    """

    parent: int
    depth: int
    place: int
    value: float


@dataclass(eq=False, slots=True)
class _Ahead:
    """What the positions of a generation are known for.

    Attributes:
        edges: candidates of this round's positions; none if it drafted nothing.
        gains: expected accepted tokens by position, as moving averages.
    """

    edges: list[list[Edge]] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)


class ParallelDrafter(ModelDrafter):
    """Drafts with a model that predicts several tokens in one call.

    Mask tokens follow the last one, whose row gives candidates for the first token to come; the
    first mask's row gives those for the second one, and so on. They do not depend on the tokens
    drafted before them, so the tree has the likeliest combinations. A position gets a mask while
    what it added lately is worth its row, and the first one that is not is tried again.

    Args:
        model: a draft model that was trained to read masks.
        context_length: largest number of tokens that it can read.
        mask_token: the token of a mask.
        ids: see `TreeDrafter`.
    """

    name = "parallel"

    def __init__(
        self,
        model: Model,
        context_length: int,
        mask_token: int,
        ids: Ids | None = None,
    ) -> None:
        super().__init__(model, context_length, ids)
        self._mask = mask_token
        self._ahead = dict[Generation, _Ahead]()

    def begin(self, generation: Generation) -> bool:
        """See `Drafter`."""
        begun = super().begin(generation)
        if begun:
            self._ahead[generation] = _Ahead()
        return begun

    def draft(self, plan: Plan) -> None:
        """See `Drafter`."""
        asked = self._asked(plan)
        if not asked:
            return
        begin = time.perf_counter()
        batch = []
        for part, masks in zip(asked, self._masks(asked, plan), strict=True):
            state = self._states[part.generation]
            tokens = self._catch_up(state)
            wanted = range(len(tokens) - 1, len(tokens) + masks)
            batch.append(self._chain(state, tokens + [self._mask] * masks, list(wanted)))
        for part, rows, logits in zip(asked, batch, self.model.forward(batch), strict=True):
            rows.accept(range(rows.wanted[0] + 1))
            own = self._combined(part, logits, plan.least_value)
            own.graft(part.proposal)
            part.proposal = own
        usual = sum([USUAL_READING + len(rows.wanted) - 1 for rows in batch])
        self._spend(plan, begin, usual)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Drafter`: counts the candidates along the new tokens, verified or not."""
        ahead, calibration = self._ahead[generation], self._of(generation)
        for token, edges in zip(reading.tokens, ahead.edges, strict=False):
            for edge in edges:
                calibration.observe(edge.cell, edge.token == token)
            if all(edge.token != token for edge in edges):
                break
        ahead.edges = []

    def end(self, generation: Generation) -> None:
        """See `Drafter`."""
        super().end(generation)
        del self._ahead[generation]

    def _masks(self, asked: Sequence[Scheduled], plan: Plan) -> list[int]:
        """Returns the number of masks behind each sequence."""
        pairs = []
        for number, part in enumerate(asked):
            state, gain = self._states[part.generation], 1.0
            known = self._ahead[part.generation].gains
            for position in range(min(part.depth, _MOST)):
                gain *= state.hope
                gain = min(gain, known[position]) if position < len(known) else gain
                pairs.append((gain, number))
        pairs.sort(key=lambda pair: -pair[0])
        count = plan.worthwhile([gain for gain, _ in pairs], self.model.cost)
        masks = [0] * len(asked)
        for _, number in pairs[:count]:
            masks[number] += 1
        # The first position needs no mask, so as many masks show whether one more pays.
        most = [min(part.depth, _MOST) - 1 for part in asked]
        return [min(max(each, 1), limit) for each, limit in zip(masks, most, strict=True)]

    def _combined(self, part: Scheduled, logits: Floats, least: float) -> Proposal:
        """Returns the likeliest combinations of the candidates of all positions."""
        ahead = self._ahead[part.generation]
        ahead.edges = self._ranked(part.generation, logits)
        values = [[edge.value for edge in edges] for edges in ahead.edges]
        proposal, gains = Proposal(), [0.0] * len(values)
        for node in best_nodes(values, part.most_nodes, least):
            token = ahead.edges[node.depth][node.place].token
            proposal.add(node.parent, token, node.value, self.name)
            gains[node.depth] += node.value
        ahead.gains += gains[len(ahead.gains) :]
        for depth, gain in enumerate(gains):
            ahead.gains[depth] += (gain - ahead.gains[depth]) * _LATEST_WEIGHT
        self._states[part.generation].expect(values[0][0])
        return proposal

    def _ranked(self, generation: Generation, logits: Floats) -> list[list[Edge]]:
        """Returns the candidates of each position, the most valuable first."""
        sampler, tokens = generation.request.sampler, generation.tokens
        width, calibration = generation.request.limits.width, self._of(generation)
        candidates = self._candidates(self._penalized(generation, logits), sampler, width)
        ranked = []
        for position in range(len(logits)):
            row = candidates.row(position)
            [ranking] = rank(sampler, row, len(tokens) + position, width)
            edges = []
            for place, (token, value) in enumerate(zip(*ranking, strict=True)):
                cell = edge_cell(value, place, position)
                edges.append(Edge(token, calibration.acceptance(cell, value), cell))
            edges.sort(key=lambda edge: -edge.value)
            left, cut = 1.0, []
            for edge in edges:  # siblings exclude each other: together they are worth their parent
                cut.append(edge._replace(value=min(edge.value, left)))
                left = max(0.0, left - edge.value)
            ranked.append(cut)
        return ranked


def best_nodes(values: Sequence[Sequence[float]], most: int, least: float = 0.0) -> Iterator[Node]:
    """Yields the most valuable nodes of the tree of all combinations of edges, the best first.

    A node is worth at most its parent and the siblings before it, so only the first child and the
    next sibling of a yielded node can come next.

    Args:
        values: values of the edges of each depth, in [0, 1] and not increasing.
        most: largest number of nodes.
        least: value that a node must exceed.
    """
    # The best node comes first; of equal ones, the one that was found first.
    found = [(-values[0][0], 0, Node(ROOT, 0, 0, values[0][0]), 1.0)]
    total = 1
    for number in range(most):
        if not found or -found[0][0] <= least:
            break
        _, _, node, above = heapq.heappop(found)
        yield node
        edges, depth = values[node.depth], node.depth + 1
        following = []
        if node.place + 1 < len(edges):
            value = above * edges[node.place + 1]
            following.append((node._replace(place=node.place + 1, value=value), above))
        if depth < len(values):
            following.append((Node(number, depth, 0, node.value * values[depth][0]), node.value))
        for each, parents in following:
            heapq.heappush(found, (-each.value, total, each, parents))
            total += 1
