"""Sources as the planner sees them: what asking costs, and what it has promised lately."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from edgespec.runtime.arrays import Floats
from edgespec.runtime.curve import Curve, Seconds
from edgespec.runtime.deployment.throughput import Pair, plain
from edgespec.runtime.drafters.base import Drafter, TreeBudget
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.planning.planner import TRIALS, Standing
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.shapes import capacity_bucket
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import TokenTree
from edgespec.runtime.trees.walk import Verdict

_WEIGHT = 0.1  # of the latest round in moving averages
_USUAL, _USUAL_DEPTH = 0.7, 7  # share of a draft model's guesses that are right, and how many
_TRY_ANYWAY = 0.02  # of what a text still takes: this draft may guess better than usual
_PROBE_DEPTH = 2
_PROBE_NODES = 3


class Retriever(Drafter, Protocol):
    """A source that adds to what others propose."""

    def extend(self, proposal: Proposal, text: Sequence[int], budget: TreeBudget) -> None:
        """Add nodes to a proposal."""


Drafter_co = TypeVar("Drafter_co", bound=Drafter, covariant=True)


class WeighedSource(ABC, Generic[Drafter_co]):
    """A source, what asking it costs, and whether that has been worth it.

    Args:
        drafter: the source.
        trials: rounds of each text in which it can show what it is worth; 0: known to lose.

    Attributes:
        standing: whether to ask it.
        asked: whether it was, in this round.
        seconds: what asking it in this round is expected to cost.
        once: of these, what later rounds need not pay again.
        spent: what it did cost in this round.
    """

    def __init__(self, drafter: Drafter_co, trials: int = TRIALS) -> None:
        self._drafter = drafter
        self._trials = trials
        self.standing = Standing(trials)
        self.asked = False
        self.seconds = self.once = self.spent = 0.0

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """A new text starts."""
        self.standing = Standing(self._trials)
        self.start_round()
        self._drafter.begin(prompt, sampler)

    def start_round(self) -> None:
        """Nothing was asked yet."""
        self.asked, self.spent = False, 0.0

    def wanted(self, alternative: float) -> bool:
        """Whether to ask it in this round, where there is something of `alternative` tokens/s."""
        return self.standing.asks(alternative)

    def ask(
        self, proposal: Proposal, text: Sequence[int], budget: TreeBudget, capacity: int
    ) -> Proposal:
        """The proposal with what this source adds to it."""
        begin = time.perf_counter()
        joined = self._join(proposal, text, budget)
        self.asked, self.spent = True, time.perf_counter() - begin
        self._price(budget, capacity)
        return joined

    def level_seconds(self, budget: TreeBudget, capacity: int) -> float:
        """What a level costs, where levels are calls."""
        return 0.0

    def pays_to_read(
        self, text: Sequence[int], left: float, verify: Seconds, capacity: int
    ) -> bool:
        """Whether to read what it has not read of a text, which still takes `left` seconds."""
        return True

    def ahead(self) -> bool:
        """See `Drafter`; only who was asked has something to go on from."""
        return self.asked and self._drafter.ahead()

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`; scores the source if it was asked, whosever nodes were verified."""
        if self.asked:
            begin = time.perf_counter()
            self._drafter.observe(verdict, tree, logits)
            learning = time.perf_counter() - begin
            self.spent += learning
            self._learn_cost(learning)

    @abstractmethod
    def _join(self, proposal: Proposal, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """The proposal with what this source adds."""

    @abstractmethod
    def _price(self, budget: TreeBudget, capacity: int) -> None:
        """It was asked on these terms: set `seconds` and `once`."""

    @abstractmethod
    def _learn_cost(self, learning: float) -> None:
        """The round is over, and to learn from it took so many seconds."""


class WeighedRetrieval(WeighedSource[Retriever]):
    """A source that costs what its Python takes: to propose, and to learn from the round.

    Args:
        drafter: the source.
        free: it takes microseconds, and is always asked: resting would save less than it misses.
    """

    def __init__(self, drafter: Retriever, free: bool = False) -> None:
        super().__init__(drafter)
        self._free = free
        self._learning = 0.0  # seconds, a moving average

    def wanted(self, alternative: float) -> bool:
        """See `WeighedSource`."""
        return self._free or super().wanted(alternative)

    def _join(self, proposal: Proposal, text: Sequence[int], budget: TreeBudget) -> Proposal:
        self._drafter.extend(proposal, text, budget)
        return proposal

    def _price(self, budget: TreeBudget, capacity: int) -> None:
        self.seconds = self.spent + self._learning

    def _learn_cost(self, learning: float) -> None:
        self._learning += (learning - self._learning) * (_WEIGHT if self._learning else 1.0)


class WeighedModel(WeighedSource[ModelDrafter]):
    """A draft model, whose calls have a measured cost.

    Args:
        drafter: the model's.
        curve: seconds of its calls; corrected by what they take.
        trials: see `WeighedSource`.
        context: tokens that it sees at a time: behind longer texts its calls cost no more.
    """

    def __init__(
        self, drafter: ModelDrafter, curve: Curve, trials: int = TRIALS, context: int = sys.maxsize
    ) -> None:
        super().__init__(drafter, trials)
        self._curve = curve
        self._most = capacity_bucket(context)
        self._savings: dict[int, float] = {}  # of this text, by capacity, of time without drafts

    def ask(
        self, proposal: Proposal, text: Sequence[int], budget: TreeBudget, capacity: int
    ) -> Proposal:
        """See `WeighedSource`. A probe is small."""
        if self.standing.probing:
            depth, nodes = min(budget.max_depth, _PROBE_DEPTH), min(budget.max_nodes, _PROBE_NODES)
            budget = replace(budget, max_depth=depth, max_nodes=nodes)
        return super().ask(proposal, text, budget, capacity)

    def level_seconds(self, budget: TreeBudget, capacity: int) -> float:
        """See `WeighedSource`."""
        return self._seconds(min(budget.width, budget.max_nodes), capacity)

    def pays_to_read(
        self, text: Sequence[int], left: float, verify: Seconds, capacity: int
    ) -> bool:
        """See `WeighedSource`: where usual guesses would save more, or little is lost by trying."""
        call = self._seconds(1, capacity)  # a draft begins with one in any case
        reading = sum([self._seconds(rows, capacity) for rows in self._drafter.unread(text)]) - call
        if capacity not in self._savings:
            usual = Pair(verify, call, _USUAL_DEPTH).serial(_USUAL)
            self._savings[capacity] = max(1 - plain(verify) / usual, _TRY_ANYWAY)
        return reading <= self._savings[capacity] * left

    def _join(self, proposal: Proposal, text: Sequence[int], budget: TreeBudget) -> Proposal:
        # The model's nodes come first: where sources differ, it knows more of this text.
        joined = self._drafter.draft(text, budget)
        joined.graft(proposal)
        return joined

    def _price(self, budget: TreeBudget, capacity: int) -> None:
        """What the calls should have cost; what they did corrects the curve."""
        fed, calls = self._drafter.fed, [*self._drafter.fed, *self._drafter.levels]
        parts = [self._seconds(rows, capacity) for rows in calls]
        self.seconds, self.once = sum(parts), 0.0
        if fed:
            # The prompt, or text that others drafted, is fed once.
            usual = self._seconds(min(budget.width, fed[0]), capacity)
            self.once = sum(parts[: len(fed)]) - usual
        for rows, part in zip(calls, parts, strict=True):
            self._curve.observe(rows, min(capacity, self._most), part * self.spent / self.seconds)

    def _seconds(self, rows: int, capacity: int) -> float:
        return self._curve.seconds(rows, min(capacity, self._most))

    def _learn_cost(self, learning: float) -> None:
        """The calls are nearly all of it, and corrected the curve."""
