"""What was measured on this machine, kept between runs in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from edgespec import records
from edgespec.bundle import Bundle
from edgespec.cachedir import cache_folder, not_kept
from edgespec.runtime.buckets import ANY_SHAPES, ROW_BUCKETS, Shapes
from edgespec.runtime.cost import Curve
from edgespec.runtime.engines import Engines
from edgespec.runtime.processors import extensions

_log = logging.getLogger(__name__)

_PAIR = "target beside draft"  # in place of a role

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class Profile:
    """What measuring a role on its engines gave.

    Attributes:
        full: whether rows and capacities were measured, and not a few numbers of rows alone.
        points: seconds by capacity and rows, both as decimal strings, as JSON wants keys.
        refusal: why an engine did not take the role; there are no points then.
    """

    full: bool
    points: dict[str, dict[str, float]]
    refusal: str | None = None

    @classmethod
    def measured(cls, full: bool, seconds: Mapping[int, Mapping[int, float]]) -> Profile:
        """A profile from seconds by capacity and rows."""
        return cls(
            full, {str(c): {str(n): s for n, s in rows.items()} for c, rows in seconds.items()}
        )

    def least(self, again: Profile) -> Profile:
        """The shorter times of two measurings of the same points: other load only ever adds.

        One that did not come off does not count.
        """
        if self.refusal is not None or again.refusal is not None:
            return again if self.refusal is not None else self
        pairs = zip(self.seconds.items(), again.seconds.values(), strict=True)
        return Profile.measured(
            self.full,
            {
                at: {n: min(s, other[n]) for n, s in by_rows.items()}
                for (at, by_rows), other in pairs
            },
        )

    @property
    def seconds(self) -> dict[int, dict[int, float]]:
        """The points, with numbers as keys."""
        return {
            int(capacity): {int(rows): seconds for rows, seconds in by_rows.items()}
            for capacity, by_rows in self.points.items()
        }

    def curve(self, shapes: Shapes = ANY_SHAPES) -> Curve:
        """A curve of its own for whoever asks: each learns from its own calls.

        Args:
            shapes: of the engines' calls.

        Raises:
            ValueError: if there are no points, or damaged ones.
        """
        # Fixed shapes end where texts do not: beyond them their slope goes on.
        return Curve(self.seconds, ROW_BUCKETS if shapes.capacities else shapes.rows)


@dataclass(frozen=True)
class Exactness:
    """Whether a role's rows are alike in all company on its engines (`exactness`).

    Attributes:
        exact: they are, bit for bit, in calls of an even number of rows.
        single: in calls of any number of rows, too.
    """

    exact: bool
    single: bool


@dataclass(frozen=True)
class Pairing:
    """What running a target and its draft at once gave.

    Attributes:
        slowdown: of the target's passes, 1 or more.
    """

    slowdown: float


def recall(bundle: Bundle, role: str, engines: Engines, threads: int) -> Profile | None:
    """What was measured before; None if nothing was, or what is stored is damaged."""
    profile = _read(_file(bundle, role, engines, threads), Profile)
    try:
        if profile is not None and profile.refusal is None:
            profile.curve()
    except ValueError as error:
        _log.info("the profile of %s is of no use (%s): measuring again", role, error)
        return None
    return profile


def recall_pairing(bundle: Bundle, engines: Engines, threads: int) -> Pairing | None:
    """The same of a pair, whose engines are the target's and then the draft's."""
    pairing = _read(_file(bundle, _PAIR, engines, threads), Pairing)
    return pairing if pairing is not None and 1 <= pairing.slowdown < math.inf else None


def recall_exactness(bundle: Bundle, role: str, engines: Engines, threads: int) -> Exactness | None:
    """Whether rows are alike, if that was tried before."""
    return _read(_file(bundle, _rows_of(role), engines, threads), Exactness)


def remember_exactness(
    bundle: Bundle, role: str, engines: Engines, threads: int, found: Exactness
) -> None:
    """Store what `recall_exactness` finds."""
    _write(_file(bundle, _rows_of(role), engines, threads), found)


def _rows_of(role: str) -> str:
    return f"rows of {role}"


def remember(bundle: Bundle, role: str, engines: Engines, threads: int, profile: Profile) -> None:
    """Store a profile, unless a quick one would replace a full one.

    Where nothing can be stored, the next load measures again.
    """
    before = recall(bundle, role, engines, threads)
    if before is None or profile.full or not before.full:
        _write(_file(bundle, role, engines, threads), profile)


def remember_pairing(bundle: Bundle, engines: Engines, threads: int, pairing: Pairing) -> None:
    """Store what `recall_pairing` finds."""
    _write(_file(bundle, _PAIR, engines, threads), pairing)


def _write(file: Path | None, record: object) -> None:
    if file is None:
        return
    partial = file.with_suffix(f".partial-{os.getpid()}")
    try:
        partial.write_text(json.dumps(records.encode(record)), encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        not_kept(file.parent, error)
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _read(file: Path | None, kind: type[_Record]) -> _Record | None:
    if file is None:
        return None
    try:
        return records.decode(kind, json.loads(file.read_text(encoding="utf-8")), file.name)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        _log.info("%s is of no use (%s): measuring again", file, error)
        return None


def _file(bundle: Bundle, role: str, engines: Engines, threads: int) -> Path | None:
    """One file for all that a time depends on; precision is part of the bundle's digest."""
    folder = cache_folder("curves")
    if folder is None:
        return None
    # Not the machine's name, of which containers have many.
    machine = (os.cpu_count(), platform.machine(), extensions())
    stages = [(engine.name, engine.hardware, engine.version) for engine in engines]
    facts = (*machine, stages, bundle.digest, role, threads)
    return folder / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.json"
