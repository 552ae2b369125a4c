"""Scoring a draft model's frequent tokens alone, where texts have few others."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from edgespec.runtime.sequences.model import Graph
from edgespec.runtime.speculation.generation import Generation

_LATEST = 256  # tokens of a prompt that tell of which kind a text is
_MOST_OTHERS = 0.08  # share of other tokens with which scoring the frequent ones alone still pays
_WEIGHT = 0.02  # of a token in the moving average of that share


class FrequentTokens:
    """The draft model's graph, but for the scores of tokens that are not frequent.

    The output projection over a large vocabulary is a quarter of a small model. So where texts have
    few others, the frequent tokens alone are scored (after Zhao et al., FR-Spec, 2025).

    Args:
        graph: scores the first tokens alone.
        count: how many these are.

    Attributes:
        graph: see above.
    """

    def __init__(self, graph: Graph, count: int) -> None:
        self.graph = graph
        self._count = count
        # By generation, the share of tokens that are not frequent, and the tokens read so far.
        self._others = WeakKeyDictionary[Generation, tuple[float, int]]()

    def suffices(self, generations: Iterable[Generation]) -> bool:
        """Whether these generations, at least one, have few other tokens."""
        return max(self._share(each) for each in generations) < _MOST_OTHERS

    def _share(self, generation: Generation) -> float:
        """Returns the share of a generation's latest tokens that are not frequent."""
        known = self._others.get(generation)
        if known is None:
            prompt = generation.request.prompt
            last = prompt[-_LATEST:]
            known = sum([token >= self._count for token in last]) / len(last), len(prompt)
        share, length = known
        for token in generation.tokens[length:]:
            share += ((token >= self._count) - share) * _WEIGHT
        self._others[generation] = share, len(generation.tokens)
        return share
