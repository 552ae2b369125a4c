"""Drafts by a model that predicts several tokens in one call (An et al., PARD, 2025)."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.acceptance import Calibration, edge_cell
from edgespec.runtime.drafters.base import LATEST_WEIGHT, SteppingDrafter, TreeBudget
from edgespec.runtime.drafters.calls import ModelCalls
from edgespec.runtime.drafters.ranking import Candidates, rank
from edgespec.runtime.execution.steps import Steps
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.shapes import PARALLEL_ROWS, PARALLEL_TOKENS
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import ROOT, TokenTree
from edgespec.runtime.trees.walk import Verdict

_log = logging.getLogger(__name__)


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
        parent: number of the node above it, `ROOT` below the text.
        depth: number of drafted tokens before it.
        place: index of its edge among those of its depth.
        value: product of the values of the edges that lead to it.
    """

    parent: int
    depth: int
    place: int
    value: float


class ParallelDrafter(SteppingDrafter):
    """Drafts with a model that predicts several tokens in one call.

    Mask tokens follow the text. The row of the text's last token gives candidates for the first
    token to come, the first mask's row those for the second one, and so on. They do not depend on
    the tokens drafted before them, so the tree has the likeliest combinations.

    A repetition penalty is applied for the text alone, not for the drafted tokens before a
    position, which differ from branch to branch: repetitions inside a draft are accepted less
    often.

    Positions that lately added less than `TreeBudget.least_gain` to the trees get no mask, except
    for the first of them, which shows whether they add more again.

    Args:
        calls: calls to a model that was trained to read masks. A `ModelDrafter` may use them, too.
        calibration: acceptance by what the draft says of an edge, see `ModelDrafter`.
        mask_token: the token of a mask.

    Attributes:
        name: name in results.
        fed: rows of each call of the last `draft` that only read text.
        levels: rows of its call with masks; empty if there was none.
    """

    name = "parallel"
    _sampler: Sampler  # from `begin` on

    def __init__(self, calls: ModelCalls, calibration: Calibration, mask_token: int) -> None:
        self._calls = calls
        self._calibration = calibration
        self._mask_token = mask_token
        self._edges: list[list[Edge]] = []  # of the last `draft`, by position
        # By position, as far as any were predicted, a moving average of what it adds: expected
        # accepted tokens.
        self._gains: list[float] = []
        self.fed: list[int] = []
        self.levels: list[int] = []

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`."""
        self._sampler = sampler
        try:
            if not self._calls.lost:  # by another drafter's beginning
                self._calls.begin(prompt, sampler)
        except DeviceError as error:
            self._give_up(error)

    def unread(self, text: Sequence[int]) -> list[int]:
        """Returns the rows of each call that feeds the model what it has not read of a text."""
        return self._calls.unread(text)

    def drafting(self, text: Sequence[int], budget: TreeBudget) -> Steps[Proposal]:
        """See `Drafter.draft`. Empty if the device has failed."""
        self._edges, self.fed, self.levels = [], [], []
        if self._calls.lost or budget.max_nodes < 1 or budget.max_depth < 1:
            return Proposal()
        try:
            self._calls.slide(text)
            positions = self._positions(len(text), budget)
            candidates = yield from self._look_ahead(text, [self._mask_token] * (positions - 1))
        except DeviceError as error:
            self._give_up(error)
            return Proposal()
        self._edges = [self._ranked(text, each, candidates, budget) for each in range(positions)]
        return self._proposal(budget)

    def draft_ahead(self) -> bool:
        """See `Drafter`: never, since the next call needs the verified tokens."""
        return False

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`: counts the candidates along the new tokens, verified or not."""
        for token, edges in zip(verdict.tokens, self._edges, strict=False):
            for edge in edges:
                self._calibration.observe(edge.cell, edge.token == token)
            if all(edge.token != token for edge in edges):
                break

    def _give_up(self, error: DeviceError) -> None:
        """Stop drafting in this text, which goes on without drafts."""
        _log.warning("%s: the text goes on without drafts by %s", error, self.name)
        self._calls.lost = True
        with suppress(DeviceError):  # a lost device cannot allocate new caches either
            self._calls.restart()

    def _positions(self, length: int, budget: TreeBudget) -> int:
        """Returns how many of the next tokens to predict: at least one."""
        most = min(
            budget.max_depth,
            budget.max_nodes,
            PARALLEL_TOKENS,
            self._calls.most_rows,
            self._calls.room(length, 1),
        )
        losing = (n for n, gain in enumerate(self._gains, 1) if gain < budget.least_gain)
        return min(most, next(losing, most))

    def _look_ahead(self, text: Sequence[int], masks: Sequence[int]) -> Steps[Candidates]:
        """Run what is unread of the text, and masks behind it: in one call if it is short."""
        unread = self._calls.unread(text)
        end = max(1, sum(unread))
        if end + len(masks) > min(PARALLEL_ROWS, self._calls.most_rows):
            yield from self._calls.feed(text[:-1])
            *whole, last = unread
            self.fed, end = [*whole, last - 1] if last > 1 else whole, 1
        self.levels = [end + len(masks)]
        return (yield from self._calls.look_ahead(text, masks))

    def _ranked(
        self, text: Sequence[int], position: int, candidates: Candidates, budget: TreeBudget
    ) -> list[Edge]:
        """Returns the edges to one of the next tokens, the most valuable first."""
        sampler, row = self._sampler, candidates.row(position)
        [ranking] = rank(sampler, row, len(text) + position, [text], budget.width)
        edges = []
        for place, (token, value) in enumerate(zip(*ranking, strict=True)):
            cell = edge_cell(value, place, position)
            edges.append(Edge(token, self._calibration.acceptance(cell, value), cell))
        edges.sort(key=_value, reverse=True)
        left, cut = 1.0, []
        for edge in edges:  # siblings exclude each other: together they are worth their parent
            cut.append(edge._replace(value=min(edge.value, left)))
            left = max(0.0, left - edge.value)
        return cut

    def _proposal(self, budget: TreeBudget) -> Proposal:
        proposal, gains = Proposal(), [0.0] * len(self._edges)
        values = [[edge.value for edge in edges] for edges in self._edges]
        for node in best_nodes(values, budget.max_nodes, budget.least_value):
            token = self._edges[node.depth][node.place].token
            proposal.add(node.parent, token, node.value, self.name)
            gains[node.depth] += node.value
        self._gains += gains[len(self._gains) :]
        for depth, gain in enumerate(gains):
            self._gains[depth] += (gain - self._gains[depth]) * LATEST_WEIGHT
        return proposal


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


def _value(edge: Edge) -> float:
    return edge.value
