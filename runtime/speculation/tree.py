"""Token trees: what draft sources propose, and the walk that verifies it.

The root is the last committed token, which the target reads with the tree: a tree of n nodes costs
n + 1 rows. A chain is a tree without siblings. Verifying a tree in one pass: Miao et al.,
SpecInfer, 2023.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ROOT = -1
"""Parent of the nodes directly below the last committed token."""


class Proposal:
    """Likely continuations of a sequence, as a tree below its last token.

    Nodes are numbered from 0, parents before their children. The value of a node is the probability
    that the target's walk reaches it. Siblings exclude each other, so together they are worth at
    most their parent: `add` cuts a value down to what is left of it. So the best nodes, however
    many, always form a tree.

    Attributes:
        tokens: token of each node.
        parents: parent of each node, `ROOT` below the last token.
        values: value of each node, in [0, 1].
        sources: name of the source that first proposed each node.
    """

    __slots__ = ("_left", "_places", "parents", "sources", "tokens", "values")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.values: list[float] = []
        self.sources: list[str] = []
        self._left = [1.0]  # by node, the root first: the part of its value that no child has
        self._places: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def source(self) -> str:
        """Names of all sources of its nodes, as in `model+lookup`; `none` without nodes."""
        return "+".join(dict.fromkeys(self.sources)) or "none"

    def child(self, node: int, token: int) -> int | None:
        """Returns the child of a node, or of `ROOT`, with this token; None if it has none."""
        return self._places.get((node, token))

    def value(self, node: int) -> float:
        """Returns the value of a node; the root's is 1."""
        return 1.0 if node == ROOT else self.values[node]

    def room(self, parent: int) -> float:
        """Returns the largest value that a further child of a node can have."""
        # Rounding must not lift a node above its parent, or the best nodes would form no tree.
        left = self._left[parent + 1]
        most = 1.0 if parent == ROOT else self.values[parent]
        return 0.0 if left < 0 else min(left, most)

    def add(self, parent: int, token: int, value: float, source: str) -> int:
        """Adds a child of `parent`. If there is one already, it keeps the larger value.

        Returns:
            The number of the child.
        """
        left = self.room(parent)
        place = self._places.get((parent, token))
        if place is not None:
            more = min(value - self.values[place], left)
            if more > 0:
                self.values[place] = min(self.values[place] + more, self.value(parent))
                self._left[place + 1] += more
                self._left[parent + 1] -= more
            return place
        value = min(value, left)
        self._left[parent + 1] -= value
        self._left.append(value)
        self.tokens.append(token)
        self.parents.append(parent)
        self.values.append(value)
        self.sources.append(source)
        number = self._places[parent, token] = len(self.tokens) - 1
        return number

    def graft(self, other: Proposal) -> None:
        """Adds all nodes of another proposal; nodes that both propose are merged."""
        numbers = [ROOT]
        for node, parent in enumerate(other.parents):
            token = other.tokens[node]
            value = other.values[node]
            source = other.sources[node]
            numbers.append(self.add(numbers[parent + 1], token, value, source))

    def best(self, count: int) -> Proposal:
        """Returns the best `count` nodes, or all, as a new proposal."""
        # Sorting is stable: a parent stays before a child of equal value.
        ranked = sorted(range(len(self)), key=self.values.__getitem__, reverse=True)
        return self._part(sorted(ranked[:count]))

    def branch(self) -> Proposal:
        """Returns the branch that promises most accepted tokens, as a new proposal."""
        sums = [0.0]  # by node, the root first: the accepted tokens that its path promises
        for parent, value in zip(self.parents, self.values, strict=True):
            sums.append(sums[parent + 1] + value)
        return self._part(self.path(max(range(len(sums)), key=sums.__getitem__) - 1))

    def path(self, node: int) -> list[int]:
        """Returns the nodes from the root's child down to `node`; none for `ROOT`."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def _part(self, nodes: list[int]) -> Proposal:
        """Returns some nodes, ascending, with the parents of each."""
        part = Proposal()
        numbers = {ROOT: ROOT}
        for node in nodes:
            parent = self.parents[node]
            value = self.values[node]
            source = self.sources[node]
            numbers[node] = part.add(numbers[parent], self.tokens[node], value, source)
        return part


@dataclass(frozen=True)
class Verdict:
    """The result of a verification.

    Attributes:
        nodes: the accepted nodes, from the root's child down.
        tokens: the new tokens: those of `nodes`, then the target's extra token. If an accepted node
            is a stop token, the sequence ends there without an extra token.
    """

    nodes: tuple[int, ...]
    tokens: tuple[int, ...]


def walk(
    tree: Proposal, choose: Callable[[int, list[int]], int], stop_ids: frozenset[int]
) -> Verdict:
    """Follows the target's own choices down a tree: one rule for all trees and all sources.

    The target's choice after a branch depends on that branch alone (arg-max, or arg-max under noise
    keyed by seed and position), never on what was drafted. So following the tree while it holds the
    target's own choice yields exactly the tokens of plain decoding, and the first choice that the
    tree does not hold is an extra token at no cost. Walking a greedy tree this way: Miao et al.,
    2023; position-keyed noise makes the same walk exact for sampling.

    Args:
        tree: the draft; may be empty.
        choose: `choose(row, branch)` returns the target's choice after `row` of the verification
            pass (0 is the root, i + 1 node i); `branch` holds the tokens below the root that lead
            there. Called only along the walk, so rows that it does not reach cost nothing.
        stop_ids: tokens that end a sequence. The one that ends it is the last of the verdict.

    Returns:
        At least one token, and exactly those that plain decoding gives.
    """
    node = ROOT
    nodes = list[int]()
    tokens = list[int]()
    while True:
        token = choose(node + 1, tokens.copy())
        tokens.append(token)
        child = tree.child(node, token)
        if child is not None:
            nodes.append(child)
            node = child
        if child is None or token in stop_ids:
            return Verdict(tuple(nodes), tuple(tokens))
