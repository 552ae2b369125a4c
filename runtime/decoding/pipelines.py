"""How draft and target share a round: one after the other, or both at once.

While the target verifies a tree, a drafter on another device can draft ahead, below the outcomes it
considers likely (PEARL: Liu et al., 2024). The text stays the same. A wrong guess costs only the
time by which the target's pass was slowed down.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial

from edgespec.errors import DeviceError
from edgespec.runtime.drafters import Drafter, TreeBudget, drafting, in_one_step
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.runner import Results, Runner
from edgespec.runtime.execution.steps import Steps
from edgespec.runtime.trees.proposal import Proposal

_WEIGHT = 0.2  # weight of the latest round in moving averages
_TRIALS = 4  # rounds without overlap, then with it, before the first decision
_PROBE_EVERY = 32  # one round in so many is run the other way, to see whether it has become better

_log = logging.getLogger(__name__)


class Serial:
    """Drafts first and verifies afterwards.

    Attributes:
        target: the text in the target model.
        drafter: proposes the trees.
    """

    def __init__(self, target: Runner, drafter: Drafter) -> None:
        self.target = target
        self.drafter = drafter

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Drafter.draft`."""
        return self.drafter.draft(text, budget)

    def drafting(self, text: Sequence[int], budget: TreeBudget) -> Steps[Proposal]:
        """Takes the steps to what `draft` returns; other texts may share the drafter's calls."""
        return drafting(self.drafter, text, budget)

    def verify(self, rows: Rows) -> Results:
        """See `Runner.verify`."""
        return self.target.verify(rows)


class Payoff:
    """Decides whether drafting ahead pays: what it saves of the next draft against what it costs.

    Args:
        slowdown: factor by which the target's passes get slower while the drafter's device works
            too, 1 or more.
    """

    def __init__(self, slowdown: float) -> None:
        self._held_up = 1 - 1 / slowdown  # share of an overlapped pass that is lost to the slowdown
        self._drafts = {True: _Average(), False: _Average()}  # seconds, by whether begun ahead
        self._costs = _Average()  # seconds lost by drafting ahead, per round
        self._rounds = 0

    def wanted(self) -> bool:
        """Returns whether to draft ahead in this round."""
        self._rounds += 1
        if self._rounds <= 2 * _TRIALS:
            return self._rounds > _TRIALS
        saved = self._drafts[False].value - self._drafts[True].value
        pays = saved > self._costs.value
        return pays if self._rounds % _PROBE_EVERY else not pays

    def drafted(self, seconds: float, ahead: bool) -> None:
        """Record the duration of a draft.

        The first draft of a text does not count, because it reads the prompt.

        Args:
            seconds: duration of the draft.
            ahead: whether the drafter had drafted ahead in the round before.
        """
        if self._rounds:
            self._drafts[ahead].add(seconds)

    def overlapped(self, passed: float, waited: float) -> None:
        """Record a pass that ran beside drafting ahead.

        Args:
            passed: duration of the pass in seconds.
            waited: seconds that the drafter still took after the pass had ended.
        """
        self._costs.add(passed * self._held_up + waited)


class Overlap(Serial):
    """Verifies on a thread of its own, while the drafter drafts ahead.

    If the target's device fails during an overlap, the text goes on without overlap.

    Args:
        target: the text in the target model.
        drafter: proposes the trees, on another device.
        payoff: decides in every round whether to overlap; None to overlap always.
    """

    def __init__(self, target: Runner, drafter: Drafter, payoff: Payoff | None = None) -> None:
        super().__init__(target, drafter)
        self._payoff = payoff
        self._failed = False
        self._ahead = False  # whether the last round overlapped

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Drafter.draft`."""
        begin = time.perf_counter()
        proposal = self.drafter.draft(text, budget)
        if self._payoff is not None:
            self._payoff.drafted(time.perf_counter() - begin, self._ahead)
        return proposal

    def drafting(self, text: Sequence[int], budget: TreeBudget) -> Steps[Proposal]:
        """See `Serial`; in one step, since the payoff is that of a text by itself."""
        return in_one_step(self.draft, text, budget)

    def verify(self, rows: Rows) -> Results:
        """See `Runner.verify`."""
        self._ahead = not self._failed and (self._payoff is None or self._payoff.wanted())
        if not self._ahead:
            return self.target.verify(rows)
        pass_ = _Pass(self.target, rows)
        try:
            while pass_.is_alive() and self.drafter.draft_ahead():
                pass
        finally:  # the pass uses the target's buffers until it ends, whatever happens here
            pass_.join()
        if isinstance(pass_.error, DeviceError):
            _log.warning("%s: the text goes on without overlap", pass_.error)
            self._failed = True
            # A verification writes nothing to the cache, and without the overlap it may succeed.
            return self.target.verify(rows)
        if pass_.error is not None:
            raise pass_.error
        if self._payoff is not None:
            self._payoff.overlapped(pass_.end - pass_.begin, time.perf_counter() - pass_.end)
        return pass_.results


class _Pass(threading.Thread):
    """A verification in progress, on a thread that ends with it.

    Attributes:
        results: results of the verification, once it has ended without an error.
        error: the error that it ended with; None if there was none.
        begin: start time by `time.perf_counter`.
        end: end time by `time.perf_counter`.
    """

    results: Results

    def __init__(self, target: Runner, rows: Rows) -> None:
        super().__init__(name="edgespec-verify")
        self._verify = partial(target.verify, rows)
        self.error: Exception | None = None
        self.begin = self.end = 0.0
        self.start()

    def run(self) -> None:
        """See `Thread`."""
        self.begin = time.perf_counter()
        try:
            self.results = self._verify()
        except Exception as error:
            self.error = error
        self.end = time.perf_counter()


class _Average:
    """An exponential moving average that starts at its first value."""

    def __init__(self) -> None:
        self.value = 0.0
        self._empty = True

    def add(self, value: float) -> None:
        self.value += (value - self.value) * (1.0 if self._empty else _WEIGHT)
        self._empty = False
