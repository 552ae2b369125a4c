"""The likeliest combinations of candidates for several positions, as a tree."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from edgespec.runtime.speculation.tree import ROOT


class Edge(NamedTuple):
    """A candidate for one position.

    Attributes:
        token: its token.
        value: probability that it is accepted if the tokens before it are.
        cell: its calibration cell.
    """

    token: int
    value: float
    cell: int


class CombinedNode(NamedTuple):
    """A node of a tree.

    Attributes:
        parent: number of the node above it, `ROOT` below the last token.
        depth: number of drafted tokens before it.
        edges: candidates of its depth behind its parent, the most valuable first.
        place: index of its own among them.
        above: value of its parent.
    """

    parent: int
    depth: int
    edges: Sequence[Edge]
    place: int
    above: float

    @property
    def token(self) -> int:
        """Its token."""
        return self.edges[self.place].token

    @property
    def value(self) -> float:
        """Product of the values of the edges that lead to it."""
        return self.above * self.edges[self.place].value


def best_nodes(
    edges: Callable[[int, int], Sequence[Edge]], token: int, most: int, least: float = 0.0
) -> Iterator[CombinedNode]:
    """Yields the most valuable nodes of the tree of all combinations of edges, the best first.

    A node is worth at most its parent and the siblings before it, so only the first child and the
    next sibling of a yielded node can come next.

    Args:
        edges: `edges(depth, token)` returns the candidates of a depth behind a token, with values
            in [0, 1] that do not increase; none where the tree ends.
        token: the one before the tree.
        most: largest number of nodes.
        least: value that a node must exceed.
    """
    # The best node comes first; of equal ones, the one that was found first.
    found = list[tuple[float, int, CombinedNode]]()
    total = 0

    def push(node: CombinedNode) -> None:
        nonlocal total
        if node.place < len(node.edges):
            heapq.heappush(found, (-node.value, total, node))
            total += 1

    push(CombinedNode(ROOT, 0, edges(0, token), 0, 1.0))
    for number in range(most):
        if not found or -found[0][0] <= least:
            break
        _, _, node = heapq.heappop(found)
        yield node
        push(node._replace(place=node.place + 1))
        depth = node.depth + 1
        push(CombinedNode(number, depth, edges(depth, node.token), 0, node.value))
