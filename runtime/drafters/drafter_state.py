"""What drafting has learned with one bundle, kept from text to text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgespec.bundle import Bundle
from edgespec.runtime.drafters.acceptance import Calibration, Counts
from edgespec.runtime.drafters.successors import Successors
from edgespec.system.cachedir import cache_file, store, stored

_VERSION = 1  # of what cells stand for
_SAMPLED, _GREEDY = "sampled", "greedy"


@dataclass(frozen=True)
class Acceptance:
    """How often what sources proposed was accepted, as it is kept between runs.

    Attributes:
        cells: accepted and seen, by source, kind of text and cell.
    """

    cells: dict[str, dict[str, dict[str, tuple[float, ...]]]]


class Experience:
    """What the sources of later texts start from.

    Args:
        successors: the recycling table.
        acceptance: counted in an earlier run; None: never. Counts that cannot be are left out.
    """

    def __init__(self, successors: Successors, acceptance: Acceptance | None = None) -> None:
        self.successors = successors
        self._calibrations = {
            (source, kind == _SAMPLED): Calibration(_possible(cells))
            for source, kinds in (acceptance.cells if acceptance else {}).items()
            for kind, cells in kinds.items()
        }

    def calibration(self, source: str, sampled: bool) -> Calibration:
        """Acceptance of a source's drafts; greedy and sampled texts have one each."""
        return self._calibrations.setdefault((source, sampled), Calibration())

    @property
    def acceptance(self) -> Acceptance:
        """To begin with another time."""
        cells: dict[str, dict[str, dict[str, tuple[float, ...]]]] = {}
        for (source, sampled), calibration in self._calibrations.items():
            if calibration.counts:
                cells.setdefault(source, {})[_SAMPLED if sampled else _GREEDY] = {
                    str(cell): counts for cell, counts in calibration.counts.items()
                }
        return Acceptance(cells)


def recall(bundle: Bundle) -> Acceptance | None:
    """What was counted with a bundle before; None if nothing was, or what is stored is damaged."""
    return stored(_file(bundle), Acceptance)


def remember(bundle: Bundle, acceptance: Acceptance) -> None:
    """Store what `recall` finds; where nothing can be stored, the next run counts anew."""
    if acceptance.cells:
        store(_file(bundle), acceptance)


def _possible(cells: Mapping[str, tuple[float, ...]]) -> Counts:
    """The counts that can be; others come from damage."""
    found = {}
    for cell, counts in cells.items():
        accepted, seen = counts if len(counts) == 2 else (0.0, 0.0)
        if cell.isdecimal() and len(cell) < 10 and 0 <= accepted <= seen and 0 < seen < math.inf:
            found[int(cell)] = accepted, seen
    return found


def _file(bundle: Bundle) -> Path | None:
    return cache_file("acceptance", (_VERSION, bundle.digest))
