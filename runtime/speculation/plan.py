"""How many rows a pass is to have: the most tokens per second, over the nodes of all sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from edgespec.runtime.speculation.cost import PassCost
from edgespec.runtime.speculation.generation import Generation
from edgespec.runtime.trees.proposal import Forecast, Proposal

_LONGEST_CHAIN = 8  # drafted tokens by which the usual saving is judged


@dataclass(eq=False)
class Scheduled:
    """A sequence's part of a pass.

    Attributes:
        generation: whose sequence.
        reading: tokens that the target reads, the last committed one or a chunk of the prompt.
        complete: whether these are all tokens, so that there will be a new one.
        depth: largest depth of a node; 0 if there must be no tree.
        is_prompt: whether these are tokens of the prompt.
        proposal: nodes that drafters propose, and in the end those that are verified.
    """

    generation: Generation
    reading: list[int]
    complete: bool
    depth: int
    is_prompt: bool = False
    proposal: Proposal = field(default_factory=Proposal)


class Plan:
    """A pass and what it is expected to gain.

    The nodes of all sequences compete for rows by the probability that they are accepted, so the
    best n of them are always trees (Chen et al., Sequoia, 2024, for one sequence; Liu et al.,
    SmartSpec, 2024, for several). Where rows are dear and sequences many, this becomes plain
    decoding by itself.

    Args:
        cost: of the target's passes.
        parts: sequences of the pass.

    Attributes:
        parts: see above.
        drafting: those that may have a tree.
        spent: seconds that drafts have taken so far in this round.
    """

    def __init__(self, cost: PassCost, parts: Sequence[Scheduled]) -> None:
        self.parts = parts
        self.drafting = [part for part in parts if part.depth > 0]
        self.spent = 0.0
        self._cost = cost
        self._rows = sum([len(part.reading) for part in parts])
        self._tokens = sum([part.complete for part in parts])

    def best(self) -> tuple[int, Forecast]:
        """Returns the number of nodes that gains the most tokens per second, and the result."""
        seconds, spent, rows = self._cost.seconds, self.spent, self._rows
        most = Forecast(self._tokens, spent + seconds(rows))
        nodes, rate = 0, most.tokens / most.seconds
        for count, value in enumerate(accumulate(value for value, _ in self._ranked()), 1):
            time = spent + seconds(rows + count)
            if (self._tokens + value) / time > rate:
                nodes, rate = count, (self._tokens + value) / time
                most = Forecast(self._tokens + value, time)
        return nodes, most

    def worthwhile(self, gains: Sequence[float], cost: PassCost) -> int:
        """Returns how many further nodes a draft model should run, the best ones; perhaps none.

        Each is expected to add accepted tokens, and costs a row of the draft's call and one of the
        target's pass; they must gain tokens faster than the pass without them.

        Args:
            gains: expected accepted tokens by each node that is run, descending.
            cost: of the draft model's calls.
        """
        nodes, forecast = self.best()
        gains = gains[: sum(_most_nodes(part) for part in self.drafting)]  # more cannot be verified
        rate, rows = forecast.tokens / forecast.seconds, self._rows + nodes
        now, most, count = self._cost.seconds(rows), 0.0, 0
        for number, gain in enumerate(accumulate(gains), 1):
            seconds = cost.seconds(number) + self._cost.seconds(rows + number) - now
            if gain - rate * seconds > most:
                most, count = gain - rate * seconds, number
        return count

    def saving(self, acceptance: float, cost: PassCost) -> float:
        """Returns the seconds that a draft model saves for each token; 0 if it saves none.

        Args:
            acceptance: how likely the target is to choose the model's best token.
            cost: of the model's calls.
        """
        plain = least = self._cost.seconds(self._rows)
        tokens = power = 1.0
        for nodes in range(1, _LONGEST_CHAIN + 1):
            power *= acceptance
            tokens += power
            seconds = nodes * cost.seconds(1) + self._cost.seconds(self._rows + nodes)
            least = min(least, seconds / tokens)
        return plain - least

    def choose(self) -> Forecast:
        """Cuts all proposals down to the best nodes, and returns the pass's expected result."""
        nodes, forecast = self.best()
        counts = [0] * len(self.drafting)
        for _, number in self._ranked()[:nodes]:
            counts[number] += 1
        for part, count in zip(self.drafting, counts, strict=True):
            chosen = part.proposal.best(count)
            part.proposal = chosen.branch() if part.generation.request.limits.width == 1 else chosen
        return forecast

    def _ranked(self) -> list[tuple[float, int]]:
        """Returns value and sequence of all nodes, the best first."""
        ranked = [
            (value, number)
            for number, part in enumerate(self.drafting)
            for value in sorted(part.proposal.values, reverse=True)[: _most_nodes(part)]
        ]
        ranked.sort(key=_value, reverse=True)
        return ranked


def _most_nodes(part: Scheduled) -> int:
    return part.generation.request.limits.max_nodes


def _value(node: tuple[float, int]) -> float:
    return node[0]
