"""The proposals of draft sources: likely continuations and how likely each is accepted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from edgespec.runtime.trees.tree import ROOT, TokenTree


@dataclass(frozen=True)
class Forecast:
    """The expected result of a round.

    Attributes:
        tokens: expected number of new tokens, the target's own one included.
        seconds: expected duration, from the beginning of the draft to the end of the round.
    """

    tokens: float
    seconds: float


class Proposal:
    """Continuations of the text as a trie below the pending token.

    Nodes are numbered from 0, parents before their children. The value of a node is the probability
    that the target's walk reaches it. Siblings exclude each other, so together they are worth at
    most their parent: `add` cuts a value down to what is left of it. So the best nodes, however
    many, always form a tree.

    Args:
        forecast: expected result of the round, if a planner made one.
        begun: whether a draft model began its part during the round before.

    Attributes:
        tokens: token of each node.
        parents: parent of each node, `ROOT` below the pending token.
        values: value of each node, in [0, 1].
        sources: name of the source that first proposed each node.
    """

    __slots__ = ("_left", "_places", "begun", "forecast", "parents", "sources", "tokens", "values")

    def __init__(self, forecast: Forecast | None = None, begun: bool = False) -> None:
        self.forecast = forecast
        self.begun = begun
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

    def value(self, node: int) -> float:
        """Returns the value of a node; the root's is 1."""
        return 1.0 if node == ROOT else self.values[node]

    def room(self, parent: int) -> float:
        """Returns the largest value that a further child of a node can have."""
        # Rounding must not lift a node above its parent, or the best nodes would form no tree.
        return max(0.0, min(self._left[parent + 1], self.value(parent)))

    def share_left(self, parent: int) -> float:
        """Returns `room` as a share of the parent's own value."""
        value = self.value(parent)
        return self.room(parent) / value if value else 0.0

    def add(self, parent: int, token: int, value: float, source: str) -> int:
        """Add a child of `parent`. If there is one already, it keeps the larger value.

        Returns:
            The number of the child.
        """
        place = self._places.get((parent, token))
        left = self.room(parent)
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
        self._places[parent, token] = len(self.tokens) - 1
        return len(self.tokens) - 1

    def graft(self, other: Proposal) -> None:
        """Add all nodes of another proposal; nodes that both propose are merged."""
        numbers = [ROOT]
        for node, parent in enumerate(other.parents):
            token, value, source = other.tokens[node], other.values[node], other.sources[node]
            numbers.append(self.add(numbers[parent + 1], token, value, source))

    def gains(self) -> list[float]:
        """Returns the expected accepted tokens of the best n nodes, for n from 0 to all."""
        return [0.0, *accumulate(sorted(self.values, reverse=True))]

    def best(self, count: int, forecast: Forecast | None = None) -> Proposal:
        """Returns the best `count` nodes, or all, as a new proposal."""
        # Sorting is stable: a parent stays before a child of equal value.
        ranked = sorted(range(len(self)), key=self.values.__getitem__, reverse=True)
        cut, numbers = Proposal(forecast, self.begun), {ROOT: ROOT}
        for node in sorted(ranked[: max(count, 0)]):
            parent, value, source = self.parents[node], self.values[node], self.sources[node]
            numbers[node] = cut.add(numbers[parent], self.tokens[node], value, source)
        return cut

    def branch(self) -> Proposal:
        """Returns the branch that promises most accepted tokens, as a new proposal."""
        sums = [0.0]  # by node, the root first: the accepted tokens that its path promises
        for parent, value in zip(self.parents, self.values, strict=True):
            sums.append(sums[parent + 1] + value)
        path, node = [], max(range(len(sums)), key=sums.__getitem__) - 1
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        cut, last = Proposal(self.forecast, self.begun), ROOT
        for node in reversed(path):
            last = cut.add(last, self.tokens[node], self.values[node], self.sources[node])
        return cut

    def tree(self) -> TokenTree:
        """Returns all nodes as a tree to verify."""
        if not self.tokens:
            return TokenTree.empty()  # cached, because plain decoding needs one in every round
        return TokenTree(np.array(self.tokens, np.int64), np.array(self.parents, np.int64))
