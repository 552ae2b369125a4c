"""How the draft and the target share a round: one after the other, or both at once.

While the target verifies a tree, a drafter on another device can work ahead, below the outcomes it
thinks likely (PEARL: Liu et al., 2024). The text is the same; a wrong guess costs what the target's
pass was held up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial

from edgespec.errors import DeviceError
from edgespec.runtime.drafters import Drafter, TreeBudget
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.runner import Results, Runner
from edgespec.runtime.trees.proposal import Proposal

_WEIGHT = 0.2  # of the latest round in moving averages
_TRIALS = 4  # rounds each way before anything is decided
_PROBE_EVERY = 32  # rounds of the better way, before one of the other

_log = logging.getLogger(__name__)


class Serial:
    """First the draft, then the verification.

    Attributes:
        target: the text in the target.
        drafter: guesses.
    """

    def __init__(self, target: Runner, drafter: Drafter) -> None:
        self.target = target
        self.drafter = drafter

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Drafter.draft`."""
        return self.drafter.draft(text, budget)

    def verify(self, rows: Rows) -> Results:
        """See `Runner.verify`."""
        return self.target.verify(rows)


class Payoff:
    """Whether working ahead pays: what it saves of the next draft, less what it costs the pass.

    Args:
        slowdown: of the target's passes while the drafter's device works too, 1 or more.
    """

    def __init__(self, slowdown: float) -> None:
        self._held_up = 1 - 1 / slowdown  # share of an overlapped pass
        self._drafts = {True: _Average(), False: _Average()}  # by whether it was worked ahead
        self._costs = _Average()  # of working ahead, a round
        self._rounds = 0

    def wanted(self) -> bool:
        """Whether to work ahead in this round."""
        self._rounds += 1
        if self._rounds <= 2 * _TRIALS:
            return self._rounds > _TRIALS
        saved = self._drafts[False].value - self._drafts[True].value
        pays = saved > self._costs.value
        return pays if self._rounds % _PROBE_EVERY else not pays

    def drafted(self, seconds: float, ahead: bool) -> None:
        """A draft took so long; `ahead`: after a round that was worked ahead in.

        A text's first one does not count: it reads the prompt.
        """
        if self._rounds:
            self._drafts[ahead].add(seconds)

    def overlapped(self, passed: float, waited: float) -> None:
        """A pass took so long beside work ahead, whose end was then waited for."""
        self._costs.add(passed * self._held_up + waited)


class Overlap(Serial):
    """The verification on a thread of its own, while the drafter works ahead.

    Where the target's device fails meanwhile, that ends the overlap, not the text.

    Args:
        target: the text in the target.
        drafter: guesses, on another device.
        payoff: decides for every round; None: always overlap.
    """

    def __init__(self, target: Runner, drafter: Drafter, payoff: Payoff | None = None) -> None:
        super().__init__(target, drafter)
        self._payoff = payoff
        self._failed = False
        self._ahead = False  # in the last round

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Drafter.draft`."""
        begin = time.perf_counter()
        proposal = self.drafter.draft(text, budget)
        if self._payoff is not None:
            self._payoff.drafted(time.perf_counter() - begin, self._ahead)
        return proposal

    def verify(self, rows: Rows) -> Results:
        """See `Runner.verify`."""
        self._ahead = not self._failed and (self._payoff is None or self._payoff.wanted())
        if not self._ahead:
            return self.target.verify(rows)
        pass_ = _Pass(self.target, rows)
        try:
            while pass_.is_alive() and self.drafter.ahead():
                pass
        finally:  # whatever happens here, the pass has the target's buffers until its end
            pass_.join()
        if isinstance(pass_.error, DeviceError):
            _log.warning("%s: the text goes on without overlap", pass_.error)
            self._failed = True
            # Nothing was written before the verdict, and alone the pass may succeed.
            return self.target.verify(rows)
        if pass_.error is not None:
            raise pass_.error
        if self._payoff is not None:
            self._payoff.overlapped(pass_.end - pass_.begin, time.perf_counter() - pass_.end)
        return pass_.results


class _Pass(threading.Thread):
    """A verification under way, on a thread that ends with it.

    Attributes:
        results: of the verification, when it has ended without an error.
        error: that it ended with; None if there was none.
        begin: when it began, by `time.perf_counter`.
        end: when it ended.
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
    """A moving average that starts at its first value."""

    def __init__(self) -> None:
        self.value = 0.0
        self._empty = True

    def add(self, value: float) -> None:
        self.value += (value - self.value) * (1.0 if self._empty else _WEIGHT)
        self._empty = False
