"""What was measured on this machine, kept between runs in the user's cache folder."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from edgespec.bundle import Bundle
from edgespec.runtime.curve import Curve
from edgespec.runtime.engines import Engines
from edgespec.runtime.execution.measurements import measurement_file
from edgespec.runtime.shapes import ANY_SHAPES, ROW_BUCKETS, Shapes
from edgespec.system.cachedir import store, stored

_log = logging.getLogger(__name__)

_PAIR = "target beside draft"  # in place of a role

_REMEMBERED = 256  # calls of earlier loads that count beside those of the latest

Part = Literal["low", "median", "high"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Spread:
    """Seconds of calls of one shape.

    Attributes:
        low: one in ten took less.
        median: half of them did.
        high: one in ten took more.
    """

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """That of some calls."""
        return cls(*np.quantile(seconds, (0.1, 0.5, 0.9)).tolist())


@dataclass(frozen=True)
class DecodingCosts:
    """What the calls of texts took.

    Attributes:
        calls: how many.
        seconds: by rows, as decimal strings, at the least capacity that was measured.
    """

    calls: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class Profile:
    """What measuring a role on its engines gave.

    Attributes:
        full: whether rows and capacities were measured, and not a few numbers of rows alone.
        points: seconds by capacity and rows, both as decimal strings, as JSON wants keys.
        refusal: why an engine did not take the role; there are no points then.
        times: how often it has been measured so far.
        lived: by texts since then; None: there was none.
    """

    full: bool
    points: dict[str, dict[str, Spread]]
    refusal: str | None = None
    times: int = 1
    lived: DecodingCosts | None = None

    @classmethod
    def measured(cls, full: bool, seconds: Mapping[int, Mapping[int, Sequence[float]]]) -> Profile:
        """A profile from the seconds of calls by capacity and rows."""
        return cls(
            full,
            {
                str(c): {str(n): Spread.of(s) for n, s in rows.items()}
                for c, rows in seconds.items()
            },
        )

    @property
    def seconds(self) -> dict[int, dict[int, float]]:
        """The medians of the points, with numbers as keys."""
        return self._points("median")

    def curve(self, shapes: Shapes = ANY_SHAPES, of: Part = "median") -> Curve:
        """A curve of its own for whoever asks: each learns from its own calls.

        Args:
            shapes: of the engines' calls.
            of: what each point's seconds are.

        Raises:
            ValueError: if there are no points, or damaged ones.
        """
        return _curve(self._points(of), shapes)

    @property
    def lived_calls(self) -> int:
        """Of texts."""
        return self.lived.calls if self.lived is not None else 0

    def lived_curve(self, shapes: Shapes = ANY_SHAPES) -> Curve:
        """As `curve`, of what the calls of texts took, of which there are some.

        Raises:
            ValueError: if there are no points, or damaged ones.
        """
        assert self.lived is not None
        by_rows = {int(rows): seconds for rows, seconds in self.lived.seconds.items()}
        return _curve({min(self.seconds): by_rows}, shapes)

    def check(self) -> None:
        """Nothing, if it can be used.

        Raises:
            ValueError: if it is damaged.
        """
        if self.times < 1 or (self.lived is not None and self.lived.calls < 1):
            raise ValueError("counts begin at 1")
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
    # Fixed shapes end where texts do not: beyond them their slope goes on.
    return Curve(points, ROW_BUCKETS if shapes.capacities else shapes.rows)


@dataclass(frozen=True)
class OverlapCost:
    """What running a target and its draft at once gave.

    Attributes:
        slowdown: of the target's passes, 1 or more.
    """

    slowdown: float


def recall(bundle: Bundle, role: str, engines: Engines, threads: int) -> Profile | None:
    """What was measured before; None if nothing was, or what is stored is damaged."""
    profile = stored(measurement_file(bundle, role, engines, threads), Profile)
    try:
        if profile is not None:
            profile.check()
    except ValueError as error:
        _log.info("the profile of %s is of no use (%s): measuring again", role, error)
        return None
    return profile


def recall_overlap_cost(bundle: Bundle, engines: Engines, threads: int) -> OverlapCost | None:
    """The same of a pair, whose engines are the target's and then the draft's."""
    cost = stored(measurement_file(bundle, _PAIR, engines, threads), OverlapCost)
    return cost if cost is not None and 1 <= cost.slowdown < math.inf else None


def remember(bundle: Bundle, role: str, engines: Engines, threads: int, profile: Profile) -> None:
    """Store a new profile, unless a quick one would replace a full one.

    Where nothing can be stored, the next load measures again.
    """
    before = recall(bundle, role, engines, threads)
    if before is None or profile.full or not before.full:
        times = 1 if before is None else before.times + 1
        store(measurement_file(bundle, role, engines, threads), replace(profile, times=times))


def remember_lived(
    bundle: Bundle, role: str, engines: Engines, threads: int, loaded: tuple[Profile, Curve]
) -> None:
    """Store beside a profile what its curve has observed, unless it was measured anew since."""
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
    store(measurement_file(bundle, role, engines, threads), replace(known, lived=lived))


def remember_overlap_cost(
    bundle: Bundle, engines: Engines, threads: int, cost: OverlapCost
) -> None:
    """Store what `recall_overlap_cost` finds."""
    store(measurement_file(bundle, _PAIR, engines, threads), cost)
