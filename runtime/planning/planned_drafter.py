"""The planner: combines all draft sources for the most tokens per second in every round."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.runtime.arrays import Floats
from edgespec.runtime.curve import Curve
from edgespec.runtime.drafters.base import LATEST_WEIGHT, Drafter, SteppingDrafter, TreeBudget
from edgespec.runtime.drafters.grammar import forced, possible
from edgespec.runtime.execution.steps import Steps
from edgespec.runtime.planning.planner import Size, best_size, cheapest_row
from edgespec.runtime.planning.priced import PricedSource, Prospect
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.shapes import capacity_bucket
from edgespec.runtime.trees.company import SharedVerdict
from edgespec.runtime.trees.offers import Granted, Offer
from edgespec.runtime.trees.proposal import Forecast, Proposal
from edgespec.runtime.trees.tree import TokenTree
from edgespec.runtime.trees.walk import Verdict

if TYPE_CHECKING:
    from edgespec.runtime.sampling.constraint import Constraint

_PRIOR_TOKENS = 4.0  # weight of the assumption that forecasts are right, in drafted tokens
_FREE_ROW_SHARE = 0.5  # share of a row's cost that a node without a call must be worth


class PlannedDrafter(SteppingDrafter):
    """Chooses draft sources and the tree size by expected tokens over expected seconds.

    The sources are considered in the order of their cost. Each is asked if its rounds promise more
    tokens per second than the round does without it, and it adds its nodes: recycled branches to a
    looked-up chain, and both to a draft model's tree. The measured times of rounds correct the
    costs.

    Args:
        sources: groups of sources, the cheapest first; at most one source of a group is asked.
        verify: cost curve of the target's passes.
        name: name in statistics.
        grammar: state of the text in its grammar, if it follows one. Forced tokens come before all
            sources, and forbidden ones are part of no plan.
    """

    def __init__(
        self,
        sources: Sequence[Sequence[PricedSource[Drafter]]],
        verify: Curve,
        name: str = "auto",
        grammar: Constraint | None = None,
    ) -> None:
        self.name = name
        self._groups = sources
        self._sources = [source for group in sources for source in group]
        self._curve = verify
        self._grammar = grammar
        # Moving average of the seconds of a round outside the passes and the sources.
        self._host = 0.0

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`."""
        self._rate = 0.0  # moving average of tokens per second
        # Decayed sums of drafted tokens: expected to be accepted, and really accepted.
        self._expected = self._accepted = 0.0
        for source in self._sources:
            source.begin(prompt, sampler)

    def drafting(self, text: Sequence[int], budget: TreeBudget) -> Steps[Proposal]:
        """See `Drafter.draft`. Returns the best nodes of all sources, with the round's forecast."""
        self._begin = time.perf_counter()
        self._capacity = capacity_bucket(len(text) + 1)
        self._company = budget.company
        proposal = Proposal() if self._grammar is None else forced(self._grammar, budget)
        size = self._size(proposal, budget, self._host)
        self._rate = max(self._rate, size.rate)
        spent, once = self._host, 0.0
        rows = self._row_seconds(budget.max_nodes)
        for source in self._sources:
            source.start_round()
        for group in self._groups if budget.max_nodes else ():
            asked = self._most_promising(group, text, size, budget.remaining)
            if asked is not None:
                alternative = size.rate
                terms = self._terms(asked, budget, rows)
                proposal = yield from asked.ask(proposal, text, terms, self._capacity)
                if budget.width == 1:
                    proposal = proposal.branch()
                if self._grammar is not None:
                    proposal = possible(self._grammar, proposal)
                spent, once = spent + asked.seconds - asked.once, once + asked.once
                size = self._size(proposal, budget, spent)
                asked.schedule.record(size.forecast, alternative)
        self._rate += (size.rate - self._rate) * LATEST_WEIGHT
        gains, offered = self._gains(proposal, budget), time.perf_counter()
        granted = yield Offer(gains, self._pass_seconds, size.nodes, size.forecast.seconds)
        assert isinstance(granted, Granted), "an offer is answered by how much of it is taken"
        self._begin += time.perf_counter() - offered  # others' time
        forecast = Forecast(1 + gains[granted.nodes], granted.seconds + once)
        chosen = proposal.best(granted.nodes, forecast)
        self._promised = sum(chosen.values)
        self._drafted = time.perf_counter()
        return chosen

    def draft_ahead(self) -> bool:
        """See `Drafter`."""
        return any(source.draft_ahead() for source in self._sources)

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`."""
        verified = time.perf_counter()
        self._expected = self._expected * (1 - LATEST_WEIGHT) + self._promised
        self._accepted = self._accepted * (1 - LATEST_WEIGHT) + len(verdict.nodes)
        if isinstance(verdict, SharedVerdict):
            cost = verdict.cost
            self._curve.of_texts(cost.texts).observe(cost.rows, self._capacity, cost.seconds)
        else:
            self._curve.observe(len(tree) + 1, self._capacity, verified - self._drafted)
        for source in self._sources:
            source.observe(verdict, tree, logits)
        own = self._drafted - self._begin + time.perf_counter() - verified
        own -= sum([source.spent + source.idle for source in self._sources])
        self._host += (own - self._host) * (LATEST_WEIGHT if self._host else 1.0)

    def _most_promising(
        self,
        group: Sequence[PricedSource[Drafter]],
        text: Sequence[int],
        size: Size,
        remaining: int,
    ) -> PricedSource[Drafter] | None:
        """Returns the source of a group to ask; None if none beats what the round has so far."""
        own = size.forecast.tokens - self._company.tokens
        left = remaining * size.forecast.seconds / own
        others = self._company.texts + self._company.coming

        def share(rows: int) -> float:
            """Returns this text's part of a pass in which all texts have as many rows."""
            return self._pass_seconds((others + 1) * rows, others) / (others + 1)

        prospect = Prospect(size.rate, left, others, share, self._capacity)
        wanted = [source for source in group if source.wanted(text, prospect)]
        return max(wanted, key=lambda source: source.schedule.rate, default=None)

    def _row_seconds(self, nodes: int) -> tuple[float, float]:
        """Returns the seconds that a node must be worth, without a call of its own and with one.

        A node that takes no call may fill a bucket whose rows are paid for; one that takes a call
        must be worth a full row.
        """
        free = _FREE_ROW_SHARE * cheapest_row(self._verify, nodes + 1)
        return free, (self._verify(nodes + 1) - self._verify(1)) / max(1, nodes)

    def _terms(
        self, source: PricedSource[Drafter], budget: TreeBudget, rows: tuple[float, float]
    ) -> TreeBudget:
        """Returns the budget with what nodes and levels must promise at the current rate."""
        free, called = rows
        level = source.level_seconds(budget, self._capacity)
        row = called if level else free
        return replace(budget, least_gain=self._rate * level, least_value=self._rate * row)

    def _size(self, proposal: Proposal, budget: TreeBudget, spent: float) -> Size:
        """Returns the best size if the other texts verify what they did in the last round."""
        return best_size(self._gains(proposal, budget), self._verify, spent, self._company)

    def _gains(self, proposal: Proposal, budget: TreeBudget) -> list[float]:
        """Returns a proposal's gains, scaled by how forecasts came true in this text."""
        truth = (self._accepted + _PRIOR_TOKENS) / (self._expected + _PRIOR_TOKENS)
        promised = proposal.gains()[: budget.max_nodes + 1]
        return [min(gain * truth, nodes) for nodes, gain in enumerate(promised)]

    def _verify(self, rows: int) -> float:
        """Returns the seconds of the pass with so many rows of this text."""
        return self._pass_seconds(self._company.rows + rows)

    def _pass_seconds(self, rows: int, others: int | None = None) -> float:
        """Returns the seconds of a pass over so many rows of all its texts.

        Args:
            rows: number of rows; more than a pass may have cost what most do.
            others: number of other texts; None: those of this round.
        """
        curve = self._curve.of_texts(1 + (self._company.texts if others is None else others))
        return curve.seconds(min(rows, curve.most_rows), self._capacity)
