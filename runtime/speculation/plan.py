"""How many rows a pass is to have: the most tokens per second, over the nodes of all sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import Protocol

from edgespec.runtime.sequences.model import PassCost
from edgespec.runtime.speculation.generation import Forecast
from edgespec.runtime.speculation.schedule import PassPart
from edgespec.runtime.speculation.tree import Proposal

_LONGEST_CHAIN = 8  # drafted tokens by which the usual saving is judged

_HOPELESS = 0.25  # of what a node must be worth; less is not looked at
_FURTHER = (1, 2, 4, 8, 16)  # rows of which the cheapest ones tell what a node must be worth


class Cost(Protocol):
    """What a model's calls take."""

    def further(self, rows: int, count: int) -> list[float]:
        """Returns the seconds of passes of `rows` rows and 1 to `count` further ones."""


class PassPlan:
    """A pass and what it is expected to gain.

    The nodes of all sequences compete for rows by the probability that they are accepted, so the
    best n of them are always trees (Chen et al., Sequoia, 2024, for one sequence; Liu et al.,
    SmartSpec, 2024, for several). Where rows are dear and sequences many, this becomes plain
    decoding by itself.

    Args:
        cost: of the target's passes.
        parts: sequences of the pass.
        drafting: those that may have a tree.

    Attributes:
        drafting: see above.
        spent: seconds that drafts have taken so far in this round.
        beside: what drafters do while the target makes its pass: entered before it, and left behind
            it.
    """

    def __init__(
        self, cost: PassCost, parts: Sequence[PassPart], drafting: Sequence[PassPart]
    ) -> None:
        self.drafting = drafting
        self.spent = 0.0
        self.beside: list[AbstractContextManager[None]] = []
        self._cost = cost
        self._rows = sum([len(part.reading) for part in parts])
        self._tokens = sum([part.complete for part in parts])
        self._sequences = len(parts)
        # Chunks of prompts take their time with and without drafts.
        self._reading = cost.seconds(self._rows) - cost.seconds(self._tokens or self._rows)
        self._plain = self._sequences / cost.seconds(self._sequences)

    def best(self) -> tuple[int, Forecast]:
        """Returns the number of nodes that gains the most tokens per second, and the result.

        Where that is less than plain decoding gives, since drafts have taken long, the number of
        nodes is the one for which plain decoding would need the longest to catch up.
        """
        rows = self._rows
        spent = self.spent - self._reading
        base = self._cost.seconds(self._rows)
        values = self._values()
        times = self._cost.further(rows, len(values))
        total = tokens = float(self._tokens)
        rate = tokens / (spent + base)
        nodes = 0
        gained = 0.0
        ahead = 0
        for count, (value, time) in enumerate(zip(values, times, strict=True), 1):
            if value < _HOPELESS * rate * self._further:  # nor are those behind it worth a row
                break
            total += value
            if total / (spent + time) > rate:
                rate = total / (spent + time)
                nodes = count
            gain = total - tokens - self._plain * (time - base)
            if gain > gained:
                gained, ahead = gain, count
        if rate < self._plain:
            nodes = ahead
        time = times[nodes - 1] if nodes else base
        return nodes, Forecast(sum(values[:nodes], tokens), self.spent + time)

    def _values(self) -> list[float]:
        """Returns the values of all nodes, the best first."""
        return sorted([v for part in self.drafting for v in _best_values(part)], reverse=True)

    def _rate(self, forecast: Forecast) -> float:
        """Returns tokens per second without what is read of prompts."""
        return forecast.tokens / (forecast.seconds - self._reading)

    @cached_property
    def _further(self) -> float:
        """The least seconds that a further row takes."""
        seconds = self._cost.seconds
        rows = self._rows
        return min([(seconds(rows + n) - seconds(rows)) / n for n in _FURTHER])

    @cached_property
    def least_value(self) -> float:
        """The value that a node must have to be worth a row, were it the only one."""
        return self._plain * self._further

    def worthwhile(
        self,
        gains: Sequence[float],
        cost: Cost,
        hope: float = 0.0,
        queued: Cost | None = None,
    ) -> int:
        """Returns how many further nodes a draft model should run, the best ones; perhaps none.

        Each is expected to add accepted tokens, and costs a row of the draft's call and one of the
        target's pass; they must gain tokens faster than the pass without them.

        Args:
            gains: expected accepted tokens by each node that is run, descending.
            cost: of the draft model's calls.
            hope: share of the first gain that a further call below it is expected to add, and so
                on. One call may pay only together with others, where some rows more cost much and
                then several more cost little.
            queued: of such further calls, if nobody waits for them; None: as the first one.
        """
        values = self._values()
        rate, worth = self._judged(len(values) + max(len(gains), _LONGEST_CHAIN))
        best = worth(values)
        count = 0
        for number, draft in enumerate(cost.further(0, len(gains)), 1):
            if gains[number - 1] < _HOPELESS * rate * draft / number:
                break
            # Further nodes may take the rows of others, which then cost nothing in addition.
            found = worth(sorted([*values, *gains[:number]], reverse=True)) - rate * draft
            if found > best:
                best, count = found, number
        calls = 0 if count or not gains or not hope else _LONGEST_CHAIN
        chain = list[float]()
        [seconds] = cost.further(0, 1)
        [further] = (queued or cost).further(0, 1)
        for number in range(calls):
            chain.append(gains[0] * hope**number)
            found = worth(sorted([*values, *chain], reverse=True)) - rate * seconds
            if found > best:
                return 1
            seconds += further
        return count

    def queued(self, hopes: Sequence[float], cost: Cost, most: int) -> int:
        """Returns how many calls of a draft model are to follow the one that reads sequences.

        Each has a row for every sequence, of the likeliest token behind the row before. They are
        queued at once, so nothing is known of their tokens but hopes.

        Args:
            hopes: by sequence how likely the target is to choose the model's best token.
            cost: of such a call.
            most: number of calls at most.
        """
        most = min(most, _LONGEST_CHAIN - 1)
        values = sorted([*self._values(), *hopes], reverse=True)
        rate, worth = self._judged(len(values) + most * len(hopes))
        *_, draft = cost.further(0, len(hopes))
        best, count = worth(values), 0
        for number in range(1, most + 1):
            values = sorted([*values, *(hope ** (number + 1) for hope in hopes)], reverse=True)
            found = worth(values) - rate * number * draft
            if found > best:
                best, count = found, number
        return count

    def _judged(self, most: int) -> tuple[float, Callable[[Sequence[float]], float]]:
        """Returns tokens per second without further drafts, and by that what nodes are worth.

        These are the tokens of the best of so many nodes at most, whose values are given in order,
        less those due in the pass's time.
        """
        rate = max(self._rate(self.best()[1]), self._plain)
        rows = self._rows
        times = [self._cost.seconds(rows), *self._cost.further(rows, most)]

        def worth(nodes: Sequence[float]) -> float:
            sums = accumulate(nodes, initial=0.0)
            return max(
                [total - rate * seconds for total, seconds in zip(sums, times, strict=False)]
            )

        return rate, worth

    def saving(self, acceptance: float, cost: PassCost, further: PassCost) -> float:
        """Returns the seconds that a draft model saves for each token; 0 if it saves none.

        Args:
            acceptance: how likely the target is to choose the model's best token.
            cost: of the model's calls.
            further: of those behind the first one of a chain.
        """
        count = self._sequences
        first, behind = cost.seconds(count), further.seconds(count)
        plain = least = 1 / self._plain
        tokens = power = 1.0
        for nodes in range(1, _LONGEST_CHAIN + 1):
            power *= acceptance
            tokens += power
            drafts = first + (nodes - 1) * behind
            seconds = drafts + self._cost.seconds(count * (1 + nodes))
            least = min(least, seconds / (count * tokens))
        return plain - least

    def price(self, without: Forecast) -> float:
        """Returns the tokens that the seconds which drafts add to a pass would bring.

        Args:
            without: the pass's expected result before these drafts.
        """
        rate = max(self._rate(without), self._plain)
        return rate * (self.best()[1].seconds - without.seconds)

    def choose(self) -> Forecast:
        """Cuts all proposals down to the best nodes, and returns the pass's expected result."""
        trees, forecast = self.chosen()
        for part, tree in zip(self.drafting, trees, strict=True):
            part.proposal = tree
        return forecast

    def chosen(self) -> tuple[list[Proposal], Forecast]:
        """Returns the best nodes of each sequence that may draft, and the expected result."""
        nodes, forecast = self.best()
        counts = [0] * len(self.drafting)
        for _, number in self._ranked()[:nodes]:
            counts[number] += 1
        trees = []
        for part, count in zip(self.drafting, counts, strict=True):
            tree = part.proposal.best(count)
            trees.append(tree.branch() if part.generation.request.limits.width == 1 else tree)
        return trees, forecast

    def _ranked(self) -> list[tuple[float, int]]:
        """Returns value and sequence of all nodes, the best first."""
        ranked = [
            (value, number)
            for number, part in enumerate(self.drafting)
            for value in _best_values(part)
        ]
        ranked.sort(key=itemgetter(0), reverse=True)
        return ranked


def _best_values(part: PassPart) -> list[float]:
    return sorted(part.proposal.values, reverse=True)[: part.most_nodes]
