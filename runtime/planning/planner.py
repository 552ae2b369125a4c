"""How large a tree, and whether to ask a source: what brings most tokens per second.

A round with a tree of n nodes brings 1 + sum(values) tokens and costs the draft plus one pass over
n + 1 rows. Sizing trees by measured cost follows Chen et al. (Sequoia, 2024). Engines round rows
up to buckets, so only trees that fill a bucket are weighed: the rows are paid for anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.runtime.curve import Seconds
from edgespec.runtime.shapes import FINE_ROWS
from edgespec.runtime.trees.proposal import Forecast

_TOLERANCE = 1.02  # a source in use may fall this far behind the alternative
_HYSTERESIS = 1.05  # one that is not must promise this much more
_FORGET = 0.95  # of what a source promised, per round since
_FIRST_WAIT = 8  # rounds until a source that lost is tried again
_KNOWN_WAIT = 32  # the same of one that is known to lose
_LONGEST_WAIT = 256

TRIALS = 3
"""Rounds that a source has to show what it is worth."""


@dataclass(frozen=True)
class Size:
    """A tree to verify.

    Attributes:
        nodes: of the tree; 0 is plain decoding.
        forecast: of its round.
    """

    nodes: int
    forecast: Forecast

    @property
    def rate(self) -> float:
        """Expected tokens per second."""
        return self.forecast.tokens / self.forecast.seconds


def best_size(gains: Sequence[float], verify: Seconds, spent: float) -> Size:
    """The number of nodes that makes the round's rate highest.

    Args:
        gains: expected accepted tokens of the best n nodes, for n from 0 to all.
        verify: cost of a pass.
        spent: seconds that the round costs besides, so far.
    """
    best, best_seconds, best_rate = 0, 0.0, 0.0
    last = len(gains) - 1
    for bucket in FINE_ROWS:
        nodes = min(bucket - 1, last)
        seconds = spent + verify(nodes + 1)
        rate = (1 + gains[nodes]) / seconds
        if rate > best_rate:
            best, best_seconds, best_rate = nodes, seconds, rate
        if nodes == last:
            break
    return Size(best, Forecast(1 + gains[best], best_seconds))


def cheapest_row(verify: Seconds, most: int) -> float:
    """Seconds that a further row costs at least, in passes of up to `most` rows."""
    first, least = verify(1), math.inf
    for rows in FINE_ROWS[1:]:
        least = min(least, (verify(rows) - first) / (rows - 1))
        if rows >= most:
            break
    return max(0.0, least)


class Standing:
    """What a source that costs time to ask has promised lately, and when to ask it again.

    Its first rounds are trials. Later, one that promises less than the alternative rests
    for twice as long each time (exponential back-off), and one that wins starts anew.

    Args:
        trials: how many these are; 0 for one of which is known that it loses.

    Attributes:
        probing: the source was asked only to see whether it has become better: ask for little.
    """

    def __init__(self, trials: int = TRIALS) -> None:
        self.probing = False
        self._tokens = self._seconds = 0.0
        self._trials = trials
        self._idle = 0
        self._wait = _FIRST_WAIT if trials else _KNOWN_WAIT
        self._in_use = False

    def asks(self, alternative: float) -> bool:
        """Whether to ask it in this round, where something else promises `alternative`/s."""
        self.probing = False
        factor = 1 / _TOLERANCE if self._in_use else _HYSTERESIS
        if self._trials or self._tokens > alternative * factor * self._seconds:
            return True
        self._in_use = False
        self._idle += 1
        self.probing = self._idle >= self._wait
        return self.probing

    @property
    def rate(self) -> float:
        """Tokens per second that it promised lately; infinite while it is tried."""
        return math.inf if self._trials else self._tokens / self._seconds if self._seconds else 0.0

    def answered(self, forecast: Forecast, alternative: float) -> None:
        """It was asked, and its round promises this."""
        self._trials = max(0, self._trials - 1)
        keep = _FORGET ** (self._idle + 1)
        self._tokens = self._tokens * keep + forecast.tokens
        self._seconds = self._seconds * keep + forecast.seconds
        won = forecast.tokens > alternative * forecast.seconds
        if self.probing:
            self._wait = _FIRST_WAIT if won else min(2 * self._wait, _LONGEST_WAIT)
        self._in_use = won or not self.probing
        self._idle = 0
