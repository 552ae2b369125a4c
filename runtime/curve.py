"""The cost curve of a role: measured once, then corrected by the calls that texts make."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import copysign, exp, isfinite, log

from edgespec.runtime.shapes import ROW_BUCKETS

Seconds = Callable[[int], float]
"""Returns the seconds of one pass over a given number of rows."""

_GAIN = 0.4  # share of a prediction error, in log seconds, that is corrected at once
# Share of a correction that goes to the bucket's own correction; the rest goes to the common drift.
# It shrinks with every observation of the bucket from `_OWN_FIRST` to `_OWN_LEAST`, because errors
# of the measured curve are learned once, while heat and load come and go.
_OWN_FIRST, _OWN_DECAY, _OWN_LEAST = 0.5, 0.9, 0.1
# Errors are clipped to this size. The limit doubles with each further error in the same direction.
_CLIP, _MOST_DOUBLINGS = 0.15, 4
_UNSEEN = 0.01  # weight of a bucket that was never observed, beside 1 for those that were
_SHORTEST = 1e-9  # seconds; a coarse clock may give 0


class Curve:
    """Seconds of one call by number of rows and cache capacity, never decreasing in either.

    The measured times are made monotone by isotonic regression of their logarithms, because noise
    acts as a factor: first over rows, then over capacities, which keeps the order over rows. The
    curve is linear between measured points, constant before the first one, and continues with the
    last slope beyond the last one. With a single capacity it is the same for all capacities. A
    number of rows that was measured at the first capacity only grows with the capacity as those
    beside it do: attention's part grows evenly with rows.

    `observe` corrects the curve by moving averages of the logarithm: one drift that all points
    share, and one correction for each bucket of rows.

    Args:
        points: measured seconds, by capacity and then by rows.
        buckets: numbers of rows that the engine rounds up to.
        fixed: capacities that the engine rounds up to; empty where a call may have any.

    Raises:
        ValueError: if there is no point, or a time that is not positive and finite.
    """

    def __init__(
        self,
        points: Mapping[int, Mapping[int, float]],
        buckets: Sequence[int] = ROW_BUCKETS,
        fixed: Sequence[int] = (),
    ) -> None:
        known = {capacity: by_rows for capacity, by_rows in sorted(points.items()) if by_rows}
        times = [(*by_rows, *by_rows.values()) for by_rows in known.values()]
        if not known or not all(isfinite(v) and v > 0 for part in times for v in part):
            raise ValueError(f"a cost curve needs positive finite times: {points!r:.200}")
        self._capacities = list(known)
        self._buckets, self._fixed = buckets, fixed
        # Index of the bucket by number of rows. Entry 0 is never used: every call has rows.
        self._bucket = [0, *(bisect_left(buckets, n) for n in range(1, buckets[-1] + 1))]
        first = known[self._capacities[0]]
        lines = (_completed(by_rows, first) for by_rows in known.values())
        self._grid = _fitted([_over_rows(by_rows, buckets) for by_rows in lines])
        self._measured: dict[int, list[float]] = {}  # log seconds by capacity and bucket
        self._now: dict[int, list[float]] = {}  # corrected seconds, the same way
        self._drift = 0.0
        self._own = [0.0] * len(buckets)
        self._observed = [0] * len(buckets)
        self._streak = [0] * len(buckets)  # clipped errors in a row; negative: faster
        self._of_texts: dict[int, Curve] = {}

    def of_texts(self, texts: int) -> Curve:
        """Returns the curve of passes that so many texts share.

        It begins as the measured one, and passes over about as many texts correct it.
        """
        if texts == 1:
            return self
        about = 1 << (texts - 1).bit_length()
        if about not in self._of_texts:
            self._of_texts[about] = self.scaled(1.0)
        return self._of_texts[about]

    @property
    def most_rows(self) -> int:
        """The most rows of a call."""
        return self._buckets[-1]

    @property
    def observed(self) -> int:
        """Number of calls that have corrected the curve."""
        return sum(self._observed)

    def seconds(self, rows: int, capacity: int) -> float:
        """Returns the expected duration of a call.

        Args:
            rows: number of rows, from 1 to the largest bucket; a call costs what its bucket costs.
            capacity: number of cache rows.
        """
        by_bucket = self._now.get(capacity)
        if by_bucket is None:
            by_bucket = self._now[capacity] = self._predict(capacity)
        return by_bucket[self._bucket[rows]]

    def scaled(self, factor: float) -> Curve:
        """Returns a new curve that starts from the measured points of this one times `factor`."""
        lines = ([factor * seconds for seconds in line] for line in self._grid)
        by_rows = (dict(zip(self._buckets, line, strict=True)) for line in lines)
        return Curve(dict(zip(self._capacities, by_rows, strict=True)), self._buckets, self._fixed)

    def observe(self, rows: int, capacity: int, seconds: float) -> None:
        """Correct the curve by the measured duration of one call.

        A single outlier moves the curve by at most 6 %, since it may be a page fault, a growing
        cache or the first call of a shape. A lasting change is followed within about ten calls.
        """
        bucket = self._bucket[rows]
        own, streak, seen = self._own, self._streak[bucket], self._observed[bucket]
        expected = self._log_measured(capacity)[bucket] + self._drift + own[bucket]
        error = log(max(seconds, _SHORTEST)) - expected
        same = streak * error > 0
        most = _CLIP * 2.0 ** min(abs(streak), _MOST_DOUBLINGS) if same else _CLIP
        if abs(error) > most:
            error = copysign(most, error)
            self._streak[bucket] = (streak if same else 0) + (1 if error > 0 else -1)
        else:
            self._streak[bucket] = 0
        share = max(_OWN_LEAST, _OWN_FIRST * _OWN_DECAY**seen)
        own[bucket] += _GAIN * share * error
        self._drift += _GAIN * (1 - share) * error
        self._observed[bucket] = seen + 1
        self._now.clear()

    def _log_measured(self, capacity: int) -> list[float]:
        found = self._measured.get(capacity)
        if found is None:
            columns = zip(*self._grid, strict=True)
            held = next((each for each in self._fixed if each >= capacity), capacity)
            line = [_on_line(self._capacities, column, held) for column in columns]
            # Beyond the last capacity the slopes differ, so the values of buckets could cross.
            found = self._measured[capacity] = [log(v) for v in accumulate(line, max)]
        return found

    def _predict(self, capacity: int) -> list[float]:
        logs = [a + b for a, b in zip(self._log_measured(capacity), self._own, strict=True)]
        if any(a > b for a, b in pairwise(logs)):
            logs = _isotonic(logs, [1.0 if seen else _UNSEEN for seen in self._observed])
        return [exp(value + self._drift) for value in logs]


def _completed(points: Mapping[int, float], first: Mapping[int, float]) -> Mapping[int, float]:
    """Returns the points of a capacity, with the rows that only the first capacity has.

    What these take more than there is interpolated, and never less than nothing.
    """
    rows = sorted(points.keys() & first.keys())
    if not rows:
        return points
    more = [max(0.0, points[n] - first[n]) for n in rows]
    return {n: first[n] + max(0.0, _on_line(rows, more, n)) for n in first} | dict(points)


def _over_rows(points: Mapping[int, float], buckets: Sequence[int]) -> list[float]:
    """Returns the seconds of each bucket, given those of some numbers of rows."""
    rows = sorted(points)
    fit = [exp(v) for v in _isotonic([log(points[n]) for n in rows], [1.0] * len(rows))]
    return [_on_line(rows, fit, bucket) for bucket in buckets]


def _fitted(grid: Sequence[Sequence[float]]) -> list[list[float]]:
    """Returns a grid that is monotone in both directions, given one that is monotone in each row.

    Isotonic regression preserves order, as its min-max formula shows, so each row stays monotone.
    """
    columns = [
        _isotonic([log(v) for v in column], [1.0] * len(grid)) for column in zip(*grid, strict=True)
    ]
    return [[exp(v) for v in row] for row in zip(*columns, strict=True)]


def _on_line(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    """Interpolates linearly between points with ascending `xs`.

    The result is constant before the first point and continues with the last slope beyond the last.
    """
    if x <= xs[0] or len(xs) == 1:
        return ys[0]
    right = min(bisect_left(xs, x), len(xs) - 1)
    left = right - 1
    return ys[left] + (ys[right] - ys[left]) * (x - xs[left]) / (xs[right] - xs[left])


def _isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Returns the non-decreasing sequence nearest to `values` in weighted least squares.

    Pool adjacent violators (Ayer, Brunk, Ewing, Reid and Silverman, 1955).
    """
    pools: list[tuple[float, float, int]] = []  # value, weight, number of entries
    for value, weight in zip(values, weights, strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            before = pools.pop()
            total = before[1] + pool[1]
            mean = (before[0] * before[1] + pool[0] * pool[1]) / total
            pool = (mean, total, before[2] + pool[2])
        pools.append(pool)
    return [value for value, _, count in pools for _ in range(count)]
