"""Draft sources with their price: what asking them costs, and what they have promised lately."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from edgespec.runtime.arrays import Floats
from edgespec.runtime.curve import Curve, Seconds
from edgespec.runtime.deployment.options import FIXED_DRAFT_TOKENS
from edgespec.runtime.deployment.throughput import USUAL_ACCEPTANCE, Pair, plain
from edgespec.runtime.drafters.base import (
    LATEST_WEIGHT,
    CallingDrafter,
    Drafter,
    TreeBudget,
    drafting,
)
from edgespec.runtime.execution.steps import Called, Steps
from edgespec.runtime.planning.planner import TRIALS, SourceSchedule
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.shapes import PARALLEL_ROWS, capacity_bucket
from edgespec.runtime.trees.company import Company, PassCost
from edgespec.runtime.trees.proposal import Proposal
from edgespec.runtime.trees.tree import TokenTree
from edgespec.runtime.trees.walk import Verdict

# Share of a text's remaining time that a model may always take to read the text, because it may
# guess better than usual.
_TRY_ANYWAY = 0.02
_PROBE_DEPTH = 2  # largest depth of a probe's tree
_PROBE_NODES = 3  # largest number of its nodes


@dataclass(frozen=True)
class Prospect:
    """What a source is to beat.

    Attributes:
        alternative: tokens per second that the round promises without it.
        left: expected seconds until the end of the text.
        others: number of other texts that are made.
        share: a text's part of the seconds of a pass in which each has so many rows.
        capacity: cache capacity in rows.
    """

    alternative: float
    left: float
    others: int
    share: Seconds
    capacity: int


class Retriever(Drafter, Protocol):
    """A source that adds to the proposals of others."""

    def extend(self, proposal: Proposal, text: Sequence[int], budget: TreeBudget) -> None:
        """Add nodes to a proposal."""


Drafter_co = TypeVar("Drafter_co", bound=Drafter, covariant=True)


class PricedSource(ABC, Generic[Drafter_co]):
    """A draft source, the cost of asking it, and a schedule that tells when that pays.

    Args:
        drafter: the source.
        trials: number of trial rounds in each text; 0 for a source that is known to lose.

    Attributes:
        schedule: decides whether to ask the source.
        asked: whether it was asked in this round.
        seconds: expected cost of asking it in this round.
        once: part of `seconds` that later rounds need not pay again.
        spent: measured cost in this round, in seconds.
        idle: seconds of the round in which other texts went on while it waited.
    """

    def __init__(self, drafter: Drafter_co, trials: int = TRIALS) -> None:
        self._drafter = drafter
        self._trials = trials
        self.schedule = SourceSchedule(trials)
        self.asked = False
        self.seconds = self.once = self.spent = self.idle = 0.0

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """Start a new text."""
        self.schedule = SourceSchedule(self._trials)
        self.start_round()
        self._drafter.begin(prompt, sampler)

    def start_round(self) -> None:
        """Start a new round, in which the source was not asked yet."""
        self.asked, self.spent, self.idle = False, 0.0, 0.0

    def wanted(self, text: Sequence[int], prospect: Prospect) -> bool:
        """Returns whether to ask it for what follows a text."""
        return self.schedule.should_ask(prospect.alternative)

    def ask(
        self, proposal: Proposal, text: Sequence[int], budget: TreeBudget, capacity: int
    ) -> Steps[Proposal]:
        """Returns the proposal with the nodes that this source adds.

        Other texts go on while this one waits: only its share of a call counts as spent.
        """
        steps, answer, costs = self._join(proposal, text, budget), None, list[PassCost]()
        begin, waited = time.perf_counter(), 0.0
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                joined: Proposal = end.value
                break
            since = time.perf_counter()
            answer = yield step
            waited += time.perf_counter() - since
            if isinstance(answer, Called):
                costs.append(answer.cost)
        self.idle = waited - sum([cost.share for cost in costs])
        self.asked, self.spent = True, time.perf_counter() - begin - self.idle
        self._price(budget, capacity, costs)
        return joined

    def level_seconds(self, budget: TreeBudget, capacity: int) -> float:
        """Returns the cost of a further level; 0 where levels take no calls."""
        return 0.0

    def draft_ahead(self) -> bool:
        """See `Drafter`; only a source that was asked has something to continue."""
        return self.asked and self._drafter.draft_ahead()

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`; only a source that was asked learns, whichever nodes were verified."""
        if self.asked:
            begin = time.perf_counter()
            self._drafter.observe(verdict, tree, logits)
            learning = time.perf_counter() - begin
            self.spent += learning
            self._learn_cost(learning)

    @abstractmethod
    def _join(self, proposal: Proposal, text: Sequence[int], budget: TreeBudget) -> Steps[Proposal]:
        """Returns the proposal with the nodes that this source adds."""

    @abstractmethod
    def _price(self, budget: TreeBudget, capacity: int, costs: Sequence[PassCost]) -> None:
        """Set `seconds` and `once`, after the source was asked.

        Args:
            budget: what it was asked for.
            capacity: cache capacity in rows.
            costs: its last calls, which other texts may have shared.
        """

    @abstractmethod
    def _learn_cost(self, learning: float) -> None:
        """Update the cost at the end of a round; learning from it took `learning` seconds."""


class PricedRetriever(PricedSource[Retriever]):
    """A source whose cost is the time of its Python code, to propose and to learn from the round.

    Args:
        drafter: the source.
        free: whether to ask it in every round, because it takes only microseconds.
    """

    def __init__(self, drafter: Retriever, free: bool = False) -> None:
        super().__init__(drafter)
        self._free = free
        self._learning = 0.0  # moving average of the seconds that learning takes

    def wanted(self, text: Sequence[int], prospect: Prospect) -> bool:
        """See `PricedSource`."""
        return self._free or super().wanted(text, prospect)

    def _join(self, proposal: Proposal, text: Sequence[int], budget: TreeBudget) -> Steps[Proposal]:
        yield from ()
        self._drafter.extend(proposal, text, budget)
        return proposal

    def _price(self, budget: TreeBudget, capacity: int, costs: Sequence[PassCost]) -> None:
        self.seconds = self.spent + self._learning

    def _learn_cost(self, learning: float) -> None:
        self._learning += (learning - self._learning) * (LATEST_WEIGHT if self._learning else 1.0)


class PricedModel(PricedSource[CallingDrafter]):
    """A draft model, whose calls have a measured cost.

    Args:
        drafter: drafter that calls the model.
        curve: seconds of its calls, corrected by what they really take.
        trials: see `PricedSource`.
        context: number of tokens that it can see. Longer texts make its calls no slower.
    """

    def __init__(
        self,
        drafter: CallingDrafter,
        curve: Curve,
        trials: int = TRIALS,
        context: int = sys.maxsize,
    ) -> None:
        super().__init__(drafter, trials)
        self._curve = curve
        self._most = capacity_bucket(context)
        # By capacity and other texts, the expected saving as a share of the time without drafts.
        self._savings: dict[tuple[int, int], float] = {}

    def ask(
        self, proposal: Proposal, text: Sequence[int], budget: TreeBudget, capacity: int
    ) -> Steps[Proposal]:
        """See `PricedSource`. A probe is small."""
        if self.schedule.probing:
            depth, nodes = min(budget.max_depth, _PROBE_DEPTH), min(budget.max_nodes, _PROBE_NODES)
            budget = replace(budget, max_depth=depth, max_nodes=nodes)
        return super().ask(proposal, text, budget, capacity)

    def level_seconds(self, budget: TreeBudget, capacity: int) -> float:
        """See `PricedSource`."""
        return self._share(min(budget.width, budget.max_nodes), budget.company, capacity)

    def wanted(self, text: Sequence[int], prospect: Prospect) -> bool:
        """See `PricedSource`.

        It must also pay to let it read the part of the text that it has not read: that may cost no
        more than drafts with the usual acceptance would save, or a small share of the time that is
        left. Beside other texts, which do likewise and wait for each other, it is tried only where
        such drafts would save time.
        """
        saving, others = self._saving(prospect), prospect.others
        if not self.schedule.should_ask(prospect.alternative, trying=not others or saving > 0):
            return False
        calls = [self._seconds(rows, prospect.capacity) for rows in self._drafter.unread(text)]
        reading = sum(calls) - self._seconds(1, prospect.capacity)  # a draft begins with one anyway
        return (others + 1) * reading <= max(saving, _TRY_ANYWAY) * prospect.left

    def _saving(self, prospect: Prospect) -> float:
        """Returns what drafts with the usual acceptance save, as a share of the time without."""
        key = prospect.capacity, prospect.others
        if key not in self._savings:
            texts = prospect.others + 1
            call = self._seconds(texts, prospect.capacity, texts) / texts
            usual = Pair(prospect.share, call, FIXED_DRAFT_TOKENS).serial(USUAL_ACCEPTANCE)
            self._savings[key] = 1 - plain(prospect.share) / usual
        return self._savings[key]

    def _join(self, proposal: Proposal, text: Sequence[int], budget: TreeBudget) -> Steps[Proposal]:
        # The model's nodes come first, because it knows most about this text.
        joined = yield from drafting(self._drafter, text, budget)
        joined.graft(proposal)
        return joined

    def _price(self, budget: TreeBudget, capacity: int, costs: Sequence[PassCost]) -> None:
        """Set the expected cost of the calls, and correct the curves by the measured one."""
        fed = self._drafter.fed
        calls = [(1, rows) for rows in (*fed, *self._drafter.levels)]
        shared = [(cost.texts, cost.rows) for cost in costs][-len(calls) :]
        calls[len(calls) - len(shared) :] = shared
        parts = [self._seconds(rows, capacity, texts) / texts for texts, rows in calls]
        self.seconds, self.once = sum(parts), 0.0
        if fed:
            # The prompt, and text that other sources drafted, is fed only once.
            self.once = sum(parts[: len(fed)]) - self._usual_feed(budget, capacity)
        for (texts, rows), part in zip(calls, parts, strict=True):
            seconds = texts * part * self.spent / self.seconds
            self._curve.of_texts(texts).observe(rows, min(capacity, self._most), seconds)

    def _usual_feed(self, budget: TreeBudget, capacity: int) -> float:
        """Returns the cost of the call that feeds text in every round."""
        return self._share(min(budget.width, self._drafter.fed[0]), budget.company, capacity)

    def _share(self, rows: int, company: Company, capacity: int) -> float:
        """Returns this text's part of a call, in which others have as many rows."""
        texts = company.drafting + 1
        return self._seconds(texts * rows, capacity, texts) / texts

    def _seconds(self, rows: int, capacity: int, texts: int = 1) -> float:
        curve = self._curve.of_texts(texts)
        return curve.seconds(min(rows, curve.most_rows), min(capacity, self._most))

    def _learn_cost(self, learning: float) -> None:
        """Nothing to do: nearly all the cost is calls, which `_price` has recorded."""


class PricedParallel(PricedModel):
    """A draft model that predicts several tokens in one call, which also feeds it the text."""

    def level_seconds(self, budget: TreeBudget, capacity: int) -> float:
        """See `PricedSource`: a level takes a row of that call."""
        first, most = self._seconds(1, capacity), self._seconds(PARALLEL_ROWS, capacity)
        return (most - first) / (PARALLEL_ROWS - 1)

    def _usual_feed(self, budget: TreeBudget, capacity: int) -> float:
        return 0.0
