"""What was measured on this machine, kept between runs in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec import records
from edgespec.bundle import Bundle
from edgespec.cachedir import cache_folder
from edgespec.runtime.cost import Curve
from edgespec.runtime.engines import Engines

_log = logging.getLogger(__name__)


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

    @property
    def seconds(self) -> dict[int, dict[int, float]]:
        """The points, with numbers as keys."""
        return {
            int(capacity): {int(rows): seconds for rows, seconds in by_rows.items()}
            for capacity, by_rows in self.points.items()
        }

    def curve(self) -> Curve:
        """A curve of its own for whoever asks: each learns from its own calls.

        Raises:
            ValueError: if there are no points, or damaged ones.
        """
        return Curve(self.seconds)


def recall(bundle: Bundle, role: str, engines: Engines, threads: int) -> Profile | None:
    """What was measured before; None if nothing was, or what is stored is damaged."""
    file = _file(bundle, role, engines, threads)
    return None if file is None else _read(file)


def remember(bundle: Bundle, role: str, engines: Engines, threads: int, profile: Profile) -> None:
    """Store a profile, unless a quick one would replace a full one.

    Where nothing can be stored, the next load measures again.
    """
    file = _file(bundle, role, engines, threads)
    if file is None:
        return
    before = _read(file)
    if before is not None and before.full and not profile.full:
        return
    partial = file.with_suffix(f".partial-{os.getpid()}")
    try:
        partial.write_text(json.dumps(records.encode(profile)), encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        _log.info("%s was not stored (%s)", file, error.strerror)
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _read(file: Path) -> Profile | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        profile = records.decode(Profile, data, file.name)
        if profile.refusal is None:
            profile.curve()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        _log.info("%s is of no use (%s): measuring again", file, error)
        return None
    return profile


def _file(bundle: Bundle, role: str, engines: Engines, threads: int) -> Path | None:
    """One file for all that a time depends on; precision is part of the bundle's digest."""
    folder = cache_folder("curves")
    if folder is None:
        return None
    machine = (os.cpu_count(), platform.machine(), platform.node())
    stages = [(engine.name, engine.hardware, engine.version) for engine in engines]
    facts = (*machine, stages, bundle.digest, role, threads)
    return folder / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.json"
