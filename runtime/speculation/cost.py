"""What passes cost: seconds by number of rows, measured at load and corrected by every pass."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate, pairwise
from math import copysign, exp, inf, log

from edgespec.runtime.sequences.model import AFTER, Model, Rows

_KNOTS = (1, 2, 4, 8, 16, 32, 64)  # rows between which the curve is linear
_MEASURED, _REPEATS = (4, 8, 2, 16, 1), 2
_SLOPE = 0.25  # of the cost of one row, for a further row where only one was measured
_CLIP = 0.3  # largest error, in log seconds, that one pass corrects: it may be an outlier
_DRIFT, _OWN = 0.1, 0.1  # shares of an error that all knots take, and those of its rows besides


class PassCost:
    """Seconds of a pass by number of rows, never decreasing.

    Args:
        points: measured seconds by number of rows; at least one. What lies beyond them is
            continued with the last slope.
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        rows = sorted(points)
        slope = points[rows[0]] * _SLOPE
        if len(rows) > 1:
            less, more = rows[-2:]
            slope = max(points[more] - points[less], 0.0) / (more - less)
        self._logs = [
            log(max(_interpolated(rows, [points[n] for n in rows], slope, knot), 1e-9))
            for knot in _KNOTS
        ]
        self._refresh()

    @classmethod
    def measure(cls, model: Model, most_seconds: float) -> PassCost:
        """Times a few passes; the first one, which reads weights from the disk, doesn't count.

        Args:
            model: the model; its pool is as before afterwards.
            most_seconds: no pass is begun that is expected to end later.
        """
        _timed(model, 1)
        begin = time.perf_counter()
        points = {1: _timed(model, 1)}
        for rows in _MEASURED * _REPEATS:
            if time.perf_counter() - begin + cls(points).seconds(rows) > most_seconds:
                break
            # Others may take the processor for a while, so the least is nearest to the truth.
            points[rows] = min(points.get(rows, inf), _timed(model, rows))
        return cls(points)

    def seconds(self, rows: int) -> float:
        """Returns the expected seconds of a pass; of none for 0 rows."""
        if rows < len(self._by_rows):
            return self._by_rows[rows]
        return self._by_rows[-1] + self._slope * (rows + 1 - len(self._by_rows))

    def observe(self, rows: int, seconds: float) -> None:
        """Corrects the curve by the duration of one pass."""
        error = log(max(seconds, 1e-9) / self.seconds(rows))
        error = copysign(min(abs(error), _CLIP), error)
        right = min(bisect_left(_KNOTS, rows), len(_KNOTS) - 1)
        near = {right, max(right - 1, 0)} if _KNOTS[right] > rows else {right}
        for knot in range(len(_KNOTS)):
            self._logs[knot] += (_DRIFT + _OWN * (knot in near)) * error
        self._refresh()

    def _refresh(self) -> None:
        knots = list(accumulate((exp(value) for value in self._logs), _possible))
        by_rows = [0.0, knots[0]]
        for (left, right), (less, more) in zip(pairwise(_KNOTS), pairwise(knots), strict=True):
            self._slope = (more - less) / (right - left)
            by_rows += [less + self._slope * n for n in range(1, right - left + 1)]
        self._by_rows = by_rows


def _possible(half: float, seconds: float) -> float:
    """Returns what a pass may take, by one of half the rows: not less, and no more than two."""
    return min(max(seconds, half), 2 * half)


def _interpolated(xs: list[int], ys: list[float], slope: float, x: int) -> float:
    if x <= xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1] + slope * (x - xs[-1])
    right = bisect_left(xs, x)
    share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])


def _timed(model: Model, count: int) -> float:
    sequence = model.sequence([])
    rows = Rows(sequence, [0] * count, [AFTER, *range(count - 1)], list(range(count)))
    begin = time.perf_counter()
    model.forward([rows])
    seconds = time.perf_counter() - begin
    rows.accept([])
    return seconds
