"""All sources together: every round the draft that promises most tokens per second."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgespec.runtime.buckets import ROW_BUCKETS, capacity_bucket
from edgespec.runtime.cost import Curve
from edgespec.runtime.drafters.base import Drafter, TreeBudget
from edgespec.runtime.drafters.lookup import LookupDrafter
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.drafters.recycling import RecyclingDrafter
from edgespec.runtime.model import Floats
from edgespec.runtime.planner import Size, Standing, best_size, cheapest_row
from edgespec.runtime.proposal import Forecast, Proposal
from edgespec.runtime.sampling import Sampler
from edgespec.runtime.tree import TokenTree
from edgespec.runtime.verify import Verdict

_WEIGHT = 0.1  # of the latest round in moving averages
_SLACK = 0.5  # of what a row costs: a node of little value may fill a bucket
_PROBE_DEPTH = 2
_PROBE_NODES = 3


class TimedModel:
    """A draft model and what its calls cost.

    Args:
        drafter: the model's.
        curve: seconds of its calls; corrected by what they take.

    Attributes:
        seconds: that the last draft took.
        forecast: seconds that it should have taken.
        catching_up: of these, for text that other sources drafted, or the prompt.
    """

    def __init__(self, drafter: ModelDrafter, curve: Curve) -> None:
        self.drafter = drafter
        self._curve = curve
        self.seconds = self.forecast = self.catching_up = 0.0

    def level_seconds(self, budget: TreeBudget, capacity: int) -> float:
        """What a level costs."""
        return self._curve.seconds(min(budget.width, budget.max_nodes), capacity)

    def draft(self, text: Sequence[int], budget: TreeBudget, capacity: int) -> Proposal:
        """As the drafter's, timed."""
        begin = time.perf_counter()
        proposal = self.drafter.draft(text, budget)
        self.seconds = time.perf_counter() - begin
        chunks = [chunk for rows in self.drafter.calls for chunk in _chunks(rows)]
        parts = [self._curve.seconds(rows, capacity) for rows in chunks]
        self.forecast, self.catching_up = sum(parts), 0.0
        if chunks:
            fed = sum(parts[: len(_chunks(self.drafter.calls[0]))])
            self.catching_up = fed - self._curve.seconds(min(budget.width, chunks[0]), capacity)
            for rows, part in zip(chunks, parts, strict=True):
                self._curve.observe(rows, capacity, part * self.seconds / self.forecast)
        return proposal


@dataclass(frozen=True)
class Sources:
    """What can be asked; a model only where there is one."""

    lookup: LookupDrafter
    recycling: RecyclingDrafter
    model: TimedModel | None

    def drafters(self) -> list[Drafter]:
        """Each as a drafter of its own."""
        retrieval: list[Drafter] = [self.lookup, self.recycling]
        return [*retrieval, self.model.drafter] if self.model else retrieval


class PlannedDrafter:
    """Weighs the sources by expected tokens over expected seconds, and sizes the tree likewise.

    Looking up and recycling cost next to nothing, so they propose in every round: recycled
    branches on a looked-up spine. The draft model is asked where it promises more than that, and
    what was found for free is grafted into its tree. What passes really take corrects the costs.

    Args:
        sources: what can be asked.
        verify: seconds of the target's passes.
    """

    name = "auto"

    def __init__(self, sources: Sources, verify: Curve) -> None:
        self._sources = sources
        self._curve = verify
        self._host = 0.0  # seconds of a round outside the passes

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """See `Drafter`."""
        self._standing = Standing()
        self._rate = 0.0  # tokens per second, lately
        for drafter in self._sources.drafters():
            drafter.begin(prompt, sampler)

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Drafter`. The best nodes of all that was proposed, with the round's forecast."""
        begin = time.perf_counter()
        self._capacity = capacity_bucket(len(text) + 1)
        self._asking = 0.0
        self._rate = max(self._rate, 1 / (self._host + self._verify(1)))
        row = cheapest_row(self._verify, budget.max_nodes + 1)
        free = replace(budget, least_value=_SLACK * self._rate * row)
        proposal = self._sources.lookup.draft(text, free)
        self._sources.recycling.extend(proposal, text, free)
        size = self._size(proposal, budget, self._host)
        model, extra = self._sources.model, 0.0
        if model is not None and self._standing.asks(size.rate):
            free_rate = size.rate
            asked = replace(
                free, least_gain=self._rate * model.level_seconds(budget, self._capacity)
            )
            proposal = self._ask(model, text, asked, proposal)
            # Catching up is paid once; it says nothing about this tree or the rounds to come.
            extra = model.catching_up
            size = self._size(proposal, budget, self._host + model.forecast - extra)
            self._standing.answered(size.forecast, free_rate)
        self._rate += (size.rate - self._rate) * _WEIGHT
        self._drafted = time.perf_counter()
        self._planning = self._drafted - begin - self._asking
        forecast = Forecast(size.forecast.tokens, size.forecast.seconds + extra)
        return proposal.best(size.nodes, forecast)

    def observe(self, verdict: Verdict, tree: TokenTree, logits: Floats) -> None:
        """See `Drafter`. Every source is scored, whether or not its draft was verified."""
        begin = time.perf_counter()
        self._curve.observe(len(tree) + 1, self._capacity, begin - self._drafted)
        for drafter in self._sources.drafters():
            drafter.observe(verdict, tree, logits)
        spent = self._planning + time.perf_counter() - begin
        self._host += (spent - self._host) * (_WEIGHT if self._host else 1.0)

    def _ask(
        self, model: TimedModel, text: Sequence[int], budget: TreeBudget, free: Proposal
    ) -> Proposal:
        """The draft model's tree with what was found for free in it."""
        if self._standing.probing:
            depth, nodes = min(budget.max_depth, _PROBE_DEPTH), min(budget.max_nodes, _PROBE_NODES)
            budget = replace(budget, max_depth=depth, max_nodes=nodes)
        proposal = model.draft(text, budget, self._capacity)
        self._asking = model.seconds
        proposal.graft(free)
        return proposal

    def _size(self, proposal: Proposal, budget: TreeBudget, spent: float) -> Size:
        return best_size(proposal.gains()[: budget.max_nodes + 1], self._verify, spent)

    def _verify(self, rows: int) -> float:
        return self._curve.seconds(rows, self._capacity)


def _chunks(rows: int) -> list[int]:
    """The calls that feed this many rows."""
    most = ROW_BUCKETS[-1]
    return [most] * (rows // most) + [rows % most] * (rows % most > 0)
