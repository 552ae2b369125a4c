"""What draft sources propose: likely continuations, each with how likely it is to be accepted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from edgespec.runtime.trees.tree import ROOT, TokenTree


@dataclass(frozen=True)
class Forecast:
    """What a round is expected to bring.

    Attributes:
        tokens: new tokens, the target's own one included.
        seconds: from the draft's begin to the end of the round.
    """

    tokens: float
    seconds: float


class Proposal:
    """Continuations of the text that share their beginnings, a trie below the pending token.

    Nodes are numbered from 0, parents before their children. The value of a node is the
    probability that the target's walk comes by. Siblings exclude each other, so together they are
    worth their parent at most: `add` cuts a value down to what is left of it. So the best nodes,
    however many, hang together.

    Args:
        forecast: of the round, by whoever planned it.
        begun: whether a draft model's part of it was begun in the round before.

    Attributes:
        tokens: of each node.
        parents: of each node, `ROOT` below the pending token.
        values: of each node, in [0, 1].
        sources: of each node, who proposed it first.
    """

    __slots__ = ("_left", "_places", "begun", "forecast", "parents", "sources", "tokens", "values")

    def __init__(self, forecast: Forecast | None = None, begun: bool = False) -> None:
        self.forecast = forecast
        self.begun = begun
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.values: list[float] = []
        self.sources: list[str] = []
        self._left = [1.0]  # of the value of each node, the root first, what no child has
        self._places: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def source(self) -> str:
        """All sources of its nodes, for statistics: `model+lookup`; `none` without nodes."""
        return "+".join(dict.fromkeys(self.sources)) or "none"

    def value(self, node: int) -> float:
        """That of a node; the root's is 1."""
        return 1.0 if node == ROOT else self.values[node]

    def room(self, parent: int) -> float:
        """What a further child of a node can be worth at most."""
        # Rounding must lift no node above its parent, or the best would not hang together.
        return max(0.0, min(self._left[parent + 1], self.value(parent)))

    def share_left(self, parent: int) -> float:
        """The same, of what the node itself is worth."""
        value = self.value(parent)
        return self.room(parent) / value if value else 0.0

    def add(self, parent: int, token: int, value: float, source: str) -> int:
        """A child of `parent`, by its number. If it is there it keeps the larger value."""
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
        """Take in all nodes of another proposal; what both propose is one node."""
        numbers = [ROOT]
        for node, parent in enumerate(other.parents):
            token, value, source = other.tokens[node], other.values[node], other.sources[node]
            numbers.append(self.add(numbers[parent + 1], token, value, source))

    def gains(self) -> list[float]:
        """Expected accepted tokens of the best n nodes, for n from 0 to all."""
        return [0.0, *accumulate(sorted(self.values, reverse=True))]

    def best(self, count: int, forecast: Forecast | None = None) -> Proposal:
        """The best `count` nodes, or all, as a proposal of their own."""
        # Sorting is stable: a parent stays before a child of equal value.
        ranked = sorted(range(len(self)), key=self.values.__getitem__, reverse=True)
        cut, numbers = Proposal(forecast, self.begun), {ROOT: ROOT}
        for node in sorted(ranked[: max(count, 0)]):
            parent, value, source = self.parents[node], self.values[node], self.sources[node]
            numbers[node] = cut.add(numbers[parent], self.tokens[node], value, source)
        return cut

    def tree(self) -> TokenTree:
        """All nodes, as a tree to verify."""
        if not self.tokens:
            return TokenTree.empty()  # kept: plain decoding has one in every round
        return TokenTree(np.array(self.tokens, np.int64), np.array(self.parents, np.int64))
