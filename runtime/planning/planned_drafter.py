"""All sources together: every round the draft that promises most tokens per second."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.runtime.arrays import Floats
from edgespec.runtime.curve import Curve
from edgespec.runtime.drafters.base import Drafter, TreeBudget
from edgespec.runtime.drafters.guided import forced, possible
from edgespec.runtime.planning.planner import Size, best_size, cheapest_row
from edgespec.runtime.planning.weighed import WeighedSource
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.shapes import capacity_bucket
from edgespec.runtime.trees.proposal import Forecast, Proposal
from edgespec.runtime.trees.tree import TokenTree
from edgespec.runtime.trees.walk import Verdict

if TYPE_CHECKING:
    from edgespec.runtime.sampling.guide import Guide

_WEIGHT = 0.1  # of the latest round in moving averages
_BELIEF = 4.0  # tokens that the forecasts of a text weigh before any came true
_FORGET = 0.9  # of how forecasts came true, per round
_SLACK = 0.5  # of what a row costs: a node of little value may fill a bucket


class PlannedDrafter:
    """Weighs the sources by expected tokens over expected seconds, and sizes the tree likewise.

    In the order of their cost, each source is asked where the rounds that it took part in promise
    more than what there is without it, and adds its nodes: recycled branches on a looked-up
    spine, both in a draft model's tree. What rounds really take corrects the costs.

    Args:
        sources: the cheapest first; of those that stand together, one is asked at most.
        verify: seconds of the target's passes.
        name: what statistics call it.
        guide: of a grammar that the text follows, if any: what it forces comes before all sources,
            and what it forbids is no part of any plan.
    """

    def __init__(
        self,
        sources: Sequence[Sequence[WeighedSource[Drafter]]],
        verify: Curve,
        name: str = "auto",
        guide: Guide | None = None,
    ) -> None:
        self.name = name
        self._groups = sources
        self._sources = [source for group in sources for source in group]
        self._curve = verify
        self._guide = guide
        self._host = 0.0  # seconds of a round outside the passes and the sources

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`."""
        self._rate = 0.0  # tokens per second, lately
        # Drafted tokens that were expected to be accepted, and that were, lately.
        self._expected = self._accepted = 0.0
        for source in self._sources:
            source.begin(prompt, sampler)

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Drafter`. The best nodes of all that was proposed, with the round's forecast."""
        self._begin = time.perf_counter()
        self._capacity = capacity_bucket(len(text) + 1)
        proposal = Proposal() if self._guide is None else forced(self._guide, budget)
        size = self._size(proposal, budget, self._host)
        self._rate = max(self._rate, size.rate)
        spent, once = self._host, 0.0
        rows = self._row_seconds(budget.max_nodes)
        for source in self._sources:
            source.start_round()
        for group in self._groups if budget.max_nodes else ():
            asked = self._most_promising(group, text, size.rate, budget.remaining)
            if asked is not None:
                alternative = size.rate
                terms = self._terms(asked, budget, rows)
                proposal = asked.ask(proposal, text, terms, self._capacity)
                if self._guide is not None:
                    proposal = possible(self._guide, proposal)
                spent, once = spent + asked.seconds - asked.once, once + asked.once
                size = self._size(proposal, budget, spent)
                asked.standing.answered(size.forecast, alternative)
        self._rate += (size.rate - self._rate) * _WEIGHT
        forecast = Forecast(size.forecast.tokens, size.forecast.seconds + once)
        chosen = proposal.best(size.nodes, forecast)
        self._promised = sum(chosen.values)
        self._drafted = time.perf_counter()
        return chosen

    def ahead(self) -> bool:
        """See `Drafter`."""
        return any(source.ahead() for source in self._sources)

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`."""
        verified = time.perf_counter()
        self._expected = self._expected * _FORGET + self._promised
        self._accepted = self._accepted * _FORGET + len(verdict.nodes)
        self._curve.observe(len(tree) + 1, self._capacity, verified - self._drafted)
        for source in self._sources:
            source.observe(verdict, tree, logits)
        own = self._drafted - self._begin + time.perf_counter() - verified
        own -= sum([source.spent for source in self._sources])
        self._host += (own - self._host) * (_WEIGHT if self._host else 1.0)

    def _most_promising(
        self,
        group: Sequence[WeighedSource[Drafter]],
        text: Sequence[int],
        alternative: float,
        remaining: int,
    ) -> WeighedSource[Drafter] | None:
        """The source to ask where there is something of `alternative` tokens/s; None: none."""
        left = remaining / alternative
        wanted = [
            source
            for source in group
            if source.wanted(alternative)
            and source.pays_to_read(text, left, self._verify, self._capacity)
        ]
        return max(wanted, key=lambda source: source.standing.rate, default=None)

    def _row_seconds(self, nodes: int) -> tuple[float, float]:
        """What a node must be worth where it is found for free, and where it takes a call.

        A node that is found for free may fill a bucket; one that takes a call must be worth a row.
        """
        free = _SLACK * cheapest_row(self._verify, nodes + 1)
        return free, (self._verify(nodes + 1) - self._verify(1)) / max(1, nodes)

    def _terms(
        self, source: WeighedSource[Drafter], budget: TreeBudget, rows: tuple[float, float]
    ) -> TreeBudget:
        """What nodes and levels must promise at the rate of late."""
        free, called = rows
        level = source.level_seconds(budget, self._capacity)
        row = called if level else free
        return replace(budget, least_gain=self._rate * level, least_value=self._rate * row)

    def _size(self, proposal: Proposal, budget: TreeBudget, spent: float) -> Size:
        """The best size, with values taken as they have come true in this text."""
        truth = (self._accepted + _BELIEF) / (self._expected + _BELIEF)
        promised = proposal.gains()[: budget.max_nodes + 1]
        gains = [min(gain * truth, nodes) for nodes, gain in enumerate(promised)]
        return best_size(gains, self._verify, spent)

    def _verify(self, rows: int) -> float:
        return self._curve.seconds(rows, self._capacity)
