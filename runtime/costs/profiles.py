"""Stores measured costs in the user's cache folder and reads them back."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from edgespec.bundle import Bundle
from edgespec.runtime.curve import Curve
from edgespec.runtime.engines import Engines
from edgespec.runtime.execution.measurements import measurement_file
from edgespec.runtime.shapes import ANY_SHAPES, ROW_BUCKETS, Shapes
from edgespec.system.cachedir import store, stored

_log = logging.getLogger(__name__)

_PAIR = "target beside draft"  # the role's name in files of overlap costs

_REMEMBERED = 256  # maximum weight of earlier loads, in calls, when the latest load is added

Part = Literal["low", "median", "high"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Spread:
    """The spread of the seconds of calls of one shape.

    Attributes:
        low: the 10 % quantile.
        median: the median.
        high: the 90 % quantile.
    """

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Returns the spread of the seconds of some calls."""
        return cls(*np.quantile(seconds, (0.1, 0.5, 0.9)).tolist())


@dataclass(frozen=True)
class DecodingCosts:
    """Costs of calls that were observed while texts were generated.

    Attributes:
        calls: number of observed calls.
        seconds: seconds by rows (decimal strings), at the smallest measured capacity.
    """

    calls: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class Profile:
    """The measured costs of a role on its engines.

    Attributes:
        full: whether many rows and capacities were measured, instead of a few numbers of rows.
        points: seconds by capacity and rows; both are decimal strings, since they are JSON keys.
        refusal: reason why an engine refused the role; there are no points then. None otherwise.
        times: number of times that the role has been measured.
        lived: costs observed in texts since the last measurement; None if there were no texts.
    """

    full: bool
    points: dict[str, dict[str, Spread]]
    refusal: str | None = None
    times: int = 1
    lived: DecodingCosts | None = None

    @classmethod
    def measured(cls, full: bool, seconds: Mapping[int, Mapping[int, Sequence[float]]]) -> Profile:
        """Returns a profile of the given seconds of calls by capacity and rows."""
        return cls(
            full,
            {
                str(c): {str(n): Spread.of(s) for n, s in rows.items()}
                for c, rows in seconds.items()
            },
        )

    @property
    def seconds(self) -> dict[int, dict[int, float]]:
        """Median seconds by capacity and rows, as numbers."""
        return self._points("median")

    def curve(self, shapes: Shapes = ANY_SHAPES, of: Part = "median") -> Curve:
        """Returns a new cost curve; it can be updated without affecting other curves.

        Args:
            shapes: shapes of the engines' calls.
            of: which value of each point's spread to use.

        Raises:
            ValueError: if there are no points, or damaged ones.
        """
        return _curve(self._points(of), shapes)

    @property
    def lived_calls(self) -> int:
        """Number of calls observed in texts."""
        return self.lived.calls if self.lived is not None else 0

    def lived_curve(self, shapes: Shapes = ANY_SHAPES) -> Curve:
        """Returns the cost curve of calls observed in texts; there must be some.

        Raises:
            ValueError: if there are no points, or damaged ones.
        """
        assert self.lived is not None
        by_rows = {int(rows): seconds for rows, seconds in self.lived.seconds.items()}
        return _curve({min(self.seconds): by_rows}, shapes)

    def check(self) -> None:
        """Checks a profile that was read from a file.

        Raises:
            ValueError: if it is damaged.
        """
        if self.times < 1 or (self.lived is not None and self.lived.calls < 1):
            raise ValueError("a count is less than 1")
        if self.refusal is None:
            for part in PARTS:
                self.curve(of=part)
            if self.lived is not None:
                self.lived_curve()

    def _points(self, part: Part) -> dict[int, dict[int, float]]:
        return {
            int(capacity): {int(rows): getattr(at, part) for rows, at in by_rows.items()}
            for capacity, by_rows in self.points.items()
        }


def _curve(points: Mapping[int, Mapping[int, float]], shapes: Shapes) -> Curve:
    # A curve must cover all rows; beyond the largest fixed shape its slope continues.
    return Curve(points, ROW_BUCKETS if shapes.capacities else shapes.rows, shapes.capacities)


@dataclass(frozen=True)
class OverlapCost:
    """The measured cost of running a target and its draft model at once.

    Attributes:
        slowdown: factor by which simultaneous drafting slows the target's passes, 1 or more.
    """

    slowdown: float


def _file(bundle: Bundle, role: str, engines: Engines, threads: int) -> Path | None:
    """Returns the file of a profile. Files named by the bare role knew no long texts."""
    return measurement_file(bundle, f"{role} by capacity", engines, threads)


def recall(bundle: Bundle, role: str, engines: Engines, threads: int) -> Profile | None:
    """Returns the stored profile of a role; None if there is none or it is damaged."""
    profile = stored(_file(bundle, role, engines, threads), Profile)
    try:
        if profile is not None:
            profile.check()
    except ValueError as error:
        _log.info("the stored profile of %s is damaged (%s): measuring again", role, error)
        return None
    return profile


def recall_overlap_cost(bundle: Bundle, engines: Engines, threads: int) -> OverlapCost | None:
    """Returns the stored overlap cost; None if there is none or it is damaged.

    Args:
        bundle: the bundle of both models.
        engines: the target's engines, followed by the draft model's.
        threads: number of threads per engine.
    """
    cost = stored(measurement_file(bundle, _PAIR, engines, threads), OverlapCost)
    return cost if cost is not None and 1 <= cost.slowdown < math.inf else None


def remember(bundle: Bundle, role: str, engines: Engines, threads: int, profile: Profile) -> None:
    """Stores a new profile, unless a quick one would replace a full one.

    If nothing can be stored, the next load measures again.
    """
    before = recall(bundle, role, engines, threads)
    if before is None or profile.full or not before.full:
        times = 1 if before is None else before.times + 1
        store(_file(bundle, role, engines, threads), replace(profile, times=times))


def remember_lived(
    bundle: Bundle, role: str, engines: Engines, threads: int, loaded: tuple[Profile, Curve]
) -> None:
    """Adds a curve's observations to the stored profile, unless it was measured again since.

    Args:
        bundle: the bundle of the role.
        role: name of the role.
        engines: engines of the role's stages.
        threads: number of threads per engine.
        loaded: the profile that was loaded, and its curve with the observations.
    """
    profile, curve = loaded
    known = recall(bundle, role, engines, threads)
    if not curve.observed or known is None or known.points != profile.points:
        return
    capacity, before = min(profile.seconds), known.lived
    seconds = {str(n): curve.seconds(n, capacity) for n in profile.seconds[capacity]}
    if before is not None:
        share = curve.observed / (curve.observed + min(before.calls, _REMEMBERED))
        seconds = {
            n: before.seconds.get(n, s) ** (1 - share) * s**share for n, s in seconds.items()
        }
    lived = DecodingCosts(known.lived_calls + curve.observed, seconds)
    store(_file(bundle, role, engines, threads), replace(known, lived=lived))


def remember_overlap_cost(
    bundle: Bundle, engines: Engines, threads: int, cost: OverlapCost
) -> None:
    """Stores an overlap cost for `recall_overlap_cost`."""
    store(measurement_file(bundle, _PAIR, engines, threads), cost)
