"""What one call of a role costs: measured once, corrected by what is seen while texts are made."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import copysign, exp, isfinite, log

from edgespec.runtime.shapes import ROW_BUCKETS

Seconds = Callable[[int], float]
"""Seconds of one pass over so many rows."""

_GAIN = 0.4  # of a surprise, in log seconds, that is believed at once
# The part of it that is put down to the bucket and not to the machine. It shrinks with every
# observation: how a curve was measured wrong is learned once, but heat and load come and go.
_OWN_FIRST, _OWN_DECAY, _OWN_LEAST = 0.5, 0.9, 0.1
# A surprise counts up to this much, twice as much each time that the next one says the same.
_CLIP, _MOST_DOUBLINGS = 0.15, 4
_UNSEEN = 0.01  # weight of a bucket never observed, where it contradicts one that was
_SHORTEST = 1e-9  # seconds; a clock may say 0


class Curve:
    """Seconds of a call by rows and cache capacity, never falling in either.

    What was measured is made monotone by isotonic regression of the logarithms (noise is a
    factor), over rows and then over capacities; the second keeps the order that the first made.
    Between measured points the curve is linear; before the first it is constant, beyond the last
    it keeps the last slope, and with a single capacity it is the same for all.

    `observe` corrects it by moving averages of the logarithm: a drift that all points share, and a
    correction of each bucket of rows.

    Args:
        points: seconds by capacity and rows, as measured.
        buckets: that the engine rounds rows up to.

    Raises:
        ValueError: if there is no point, or one that is not a positive time.
    """

    def __init__(
        self, points: Mapping[int, Mapping[int, float]], buckets: Sequence[int] = ROW_BUCKETS
    ) -> None:
        known = {capacity: by_rows for capacity, by_rows in sorted(points.items()) if by_rows}
        times = [(*by_rows, *by_rows.values()) for by_rows in known.values()]
        if not known or not all(isfinite(v) and v > 0 for part in times for v in part):
            raise ValueError(f"a cost curve needs positive finite times: {points!r:.200}")
        self._capacities = list(known)
        self._buckets = buckets
        # Index of the bucket by rows; the first entry stands for no rows, which no call has.
        self._bucket = [0, *(bisect_left(buckets, n) for n in range(1, buckets[-1] + 1))]
        self._grid = _fitted([_over_rows(by_rows, buckets) for by_rows in known.values()])
        self._measured: dict[int, list[float]] = {}  # log seconds of each bucket, by capacity
        self._now: dict[int, list[float]] = {}  # seconds with what was observed, by capacity
        self._drift = 0.0
        self._own = [0.0] * len(buckets)
        self._observed = [0] * len(buckets)
        self._streak = [0] * len(buckets)  # clipped surprises in a row; below 0: faster

    @property
    def observed(self) -> int:
        """How many calls have corrected it."""
        return sum(self._observed)

    def seconds(self, rows: int, capacity: int) -> float:
        """Expected duration of a call.

        Args:
            rows: 1 to the largest row bucket; the call costs what its bucket costs.
            capacity: of the cache, in rows.
        """
        by_bucket = self._now.get(capacity)
        if by_bucket is None:
            by_bucket = self._now[capacity] = self._predict(capacity)
        return by_bucket[self._bucket[rows]]

    def scaled(self, factor: float) -> Curve:
        """A curve of its own that starts at this one's measured points times `factor`."""
        lines = ([factor * seconds for seconds in line] for line in self._grid)
        by_rows = (dict(zip(self._buckets, line, strict=True)) for line in lines)
        return Curve(dict(zip(self._capacities, by_rows, strict=True)), self._buckets)

    def observe(self, rows: int, capacity: int, seconds: float) -> None:
        """Learn from a call that took this long.

        A single surprise moves the curve by at most six per cent, since it may be a page fault,
        a growth of the cache or an engine's first call of a shape; one that lasts is followed
        within about ten calls.
        """
        bucket = self._bucket[rows]
        own, streak, seen = self._own, self._streak[bucket], self._observed[bucket]
        expected = self._log_measured(capacity)[bucket] + self._drift + own[bucket]
        surprise = log(max(seconds, _SHORTEST)) - expected
        same = streak * surprise > 0
        most = _CLIP * 2.0 ** min(abs(streak), _MOST_DOUBLINGS) if same else _CLIP
        if abs(surprise) > most:
            surprise = copysign(most, surprise)
            self._streak[bucket] = (streak if same else 0) + (1 if surprise > 0 else -1)
        else:
            self._streak[bucket] = 0
        share = max(_OWN_LEAST, _OWN_FIRST * _OWN_DECAY**seen)
        own[bucket] += _GAIN * share * surprise
        self._drift += _GAIN * (1 - share) * surprise
        self._observed[bucket] = seen + 1
        self._now.clear()

    def _log_measured(self, capacity: int) -> list[float]:
        found = self._measured.get(capacity)
        if found is None:
            columns = zip(*self._grid, strict=True)
            line = [_on_line(self._capacities, column, capacity) for column in columns]
            # Slopes beyond the last capacity may differ, so that buckets would cross.
            found = self._measured[capacity] = [log(v) for v in accumulate(line, max)]
        return found

    def _predict(self, capacity: int) -> list[float]:
        logs = [a + b for a, b in zip(self._log_measured(capacity), self._own, strict=True)]
        if any(a > b for a, b in pairwise(logs)):
            logs = _isotonic(logs, [1.0 if seen else _UNSEEN for seen in self._observed])
        return [exp(value + self._drift) for value in logs]


def _over_rows(points: Mapping[int, float], buckets: Sequence[int]) -> list[float]:
    """Seconds of each bucket from those of some numbers of rows."""
    rows = sorted(points)
    fit = [exp(v) for v in _isotonic([log(points[n]) for n in rows], [1.0] * len(rows))]
    return [_on_line(rows, fit, bucket) for bucket in buckets]


def _fitted(grid: Sequence[Sequence[float]]) -> list[list[float]]:
    """A grid of seconds, monotone within each row, made monotone from row to row as well.

    Isotonic regression preserves order (its min-max formula shows it): columns stay ordered.
    """
    columns = [
        _isotonic([log(v) for v in column], [1.0] * len(grid)) for column in zip(*grid, strict=True)
    ]
    return [[exp(v) for v in row] for row in zip(*columns, strict=True)]


def _on_line(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    """Linear between points of ascending `xs`, constant before them, the last slope beyond."""
    if x <= xs[0] or len(xs) == 1:
        return ys[0]
    right = min(bisect_left(xs, x), len(xs) - 1)
    left = right - 1
    return ys[left] + (ys[right] - ys[left]) * (x - xs[left]) / (xs[right] - xs[left])


def _isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to `values` in weighted least squares.

    Pool adjacent violators (Ayer, Brunk, Ewing, Reid and Silverman, 1955).
    """
    pools: list[tuple[float, float, int]] = []  # value, weight, how many
    for value, weight in zip(values, weights, strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            before = pools.pop()
            total = before[1] + pool[1]
            mean = (before[0] * before[1] + pool[0] * pool[1]) / total
            pool = (mean, total, before[2] + pool[2])
        pools.append(pool)
    return [value for value, _, count in pools for _ in range(count)]
