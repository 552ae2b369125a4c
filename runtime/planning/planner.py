"""Chooses the size of a tree and the sources to ask, for the most tokens per second.

A round with a tree of n nodes yields 1 + sum(values) tokens and costs the draft plus one pass over
n + 1 rows. Sizing trees by measured cost follows Chen et al. (Sequoia, 2024). Engines round rows up
to buckets, so only trees that fill a bucket are considered: the other rows are paid for anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.runtime.curve import Seconds
from edgespec.runtime.shapes import FINE_ROWS
from edgespec.runtime.trees.company import ALONE, Company
from edgespec.runtime.trees.proposal import Forecast

_TOLERANCE = 1.02  # a source in use may be slower than the alternative by this factor
_HYSTERESIS = 1.05  # a source that is not in use must be faster by this factor
_FORGET = 0.95  # factor per round on what a source promised in earlier rounds
_FIRST_WAIT = 8  # rounds until a source that lost is probed again
_KNOWN_WAIT = 32  # the same for a source that is known to lose
_LONGEST_WAIT = 256  # rounds, however often a source has lost

TRIALS = 3
"""Number of rounds of each text in which a source is tried."""


@dataclass(frozen=True)
class Size:
    """The size of a tree to verify.

    Attributes:
        nodes: number of nodes; 0 is plain decoding.
        forecast: expected result of its round, with the tokens of all texts.
    """

    nodes: int
    forecast: Forecast

    @property
    def rate(self) -> float:
        """Expected tokens per second."""
        return self.forecast.tokens / self.forecast.seconds


def best_size(
    gains: Sequence[float], verify: Seconds, spent: float, company: Company = ALONE
) -> Size:
    """Returns the number of nodes with the highest expected tokens per second.

    With other texts in the round these are the tokens of all texts, so that rows go where they
    promise most (goodput; Liu et al., SmartSpec, 2024).

    Args:
        gains: expected accepted tokens of the best n nodes, for n from 0 to all.
        verify: seconds of the pass by this text's rows.
        spent: other seconds of the round so far, without those of other texts.
        company: the other texts of the round.
    """
    base, spent = company.tokens + 1, spent + company.seconds
    best, best_seconds, best_rate = 0, 0.0, 0.0
    last = len(gains) - 1
    for bucket in FINE_ROWS:
        nodes = min(bucket - 1, last)
        seconds = spent + verify(nodes + 1)
        rate = (base + gains[nodes]) / seconds
        if rate > best_rate:
            best, best_seconds, best_rate = nodes, seconds, rate
        if nodes == last:
            break
    return Size(best, Forecast(base + gains[best], best_seconds))


def cheapest_row(verify: Seconds, most: int) -> float:
    """Returns the least seconds that a further row costs, in passes of up to `most` rows."""
    first, least = verify(1), math.inf
    for rows in FINE_ROWS[1:]:
        least = min(least, (verify(rows) - first) / (rows - 1))
        if rows >= most:
            break
    return max(0.0, least)


class SourceSchedule:
    """Decides when to ask a source that takes time, from what it has promised lately.

    Its first rounds are trials. Later, a source that promises less than the alternative pauses, and
    each time it loses again it pauses twice as long (exponential back-off). Winning resets the
    pause.

    Args:
        trials: number of trial rounds; 0 for a source that is known to lose.

    Attributes:
        probing: whether the source is asked only to see if it has become better; its draft should
            then be small.
    """

    def __init__(self, trials: int = TRIALS) -> None:
        self.probing = False
        self._tokens = self._seconds = 0.0
        self._trials = trials
        self._idle = 0
        self._wait = _FIRST_WAIT if trials else _KNOWN_WAIT
        self._in_use = False

    def should_ask(self, alternative: float, trying: bool = True) -> bool:
        """Returns whether to ask the source in this round.

        Args:
            alternative: tokens per second that the round promises without it.
            trying: whether this is a time for trials; else they are put off.
        """
        self.probing = False
        if self._trials and not trying:
            return False
        factor = 1 / _TOLERANCE if self._in_use else _HYSTERESIS
        if self._trials or self._tokens > alternative * factor * self._seconds:
            return True
        self._in_use = False
        self._idle += 1
        self.probing = self._idle >= self._wait
        return self.probing

    @property
    def rate(self) -> float:
        """Tokens per second that it promised lately; infinite during its trials."""
        return math.inf if self._trials else self._tokens / self._seconds if self._seconds else 0.0

    def record(self, forecast: Forecast, alternative: float) -> None:
        """Record what a round promises for which the source was asked."""
        self._trials = max(0, self._trials - 1)
        keep = _FORGET ** (self._idle + 1)
        self._tokens = self._tokens * keep + forecast.tokens
        self._seconds = self._seconds * keep + forecast.seconds
        won = forecast.tokens > alternative * forecast.seconds
        if self.probing:
            self._wait = _FIRST_WAIT if won else min(2 * self._wait, _LONGEST_WAIT)
        self._in_use = won or not self.probing
        self._idle = 0
