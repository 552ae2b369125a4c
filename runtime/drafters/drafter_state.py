"""What draft sources have learned with one bundle, kept from text to text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgespec.bundle import Bundle
from edgespec.runtime.drafters.acceptance import Calibration, Counts
from edgespec.runtime.drafters.successors import Successors
from edgespec.system.cachedir import cache_file, store, stored

_VERSION = 1  # to be raised when the meaning of cells changes
_SAMPLED, _GREEDY = "sampled", "greedy"


@dataclass(frozen=True)
class AcceptanceCounts:
    """Acceptance statistics of draft sources, as they are stored between runs.

    Attributes:
        cells: decayed numbers of accepted and of seen edges, by source, kind of text and cell.
    """

    cells: dict[str, dict[str, dict[str, tuple[float, ...]]]]


class DrafterState:
    """State that the draft sources of later texts start from.

    Args:
        successors: table of token recycling.
        acceptance: counts of an earlier run, or None. Impossible counts are left out.
    """

    def __init__(self, successors: Successors, acceptance: AcceptanceCounts | None = None) -> None:
        self.successors = successors
        self._calibrations = {
            (source, kind == _SAMPLED): Calibration(_possible(cells))
            for source, kinds in (acceptance.cells if acceptance else {}).items()
            for kind, cells in kinds.items()
        }

    def calibration(self, source: str, sampled: bool) -> Calibration:
        """Returns the acceptance of a source's drafts; greedy and sampled texts have one each."""
        return self._calibrations.setdefault((source, sampled), Calibration())

    @property
    def acceptance(self) -> AcceptanceCounts:
        """Counts to store for later runs."""
        cells: dict[str, dict[str, dict[str, tuple[float, ...]]]] = {}
        for (source, sampled), calibration in self._calibrations.items():
            if calibration.counts:
                cells.setdefault(source, {})[_SAMPLED if sampled else _GREEDY] = {
                    str(cell): counts for cell, counts in calibration.counts.items()
                }
        return AcceptanceCounts(cells)


def recall(bundle: Bundle) -> AcceptanceCounts | None:
    """Returns the stored counts of a bundle; None if there are none, or if they are damaged."""
    return stored(_file(bundle), AcceptanceCounts)


def remember(bundle: Bundle, acceptance: AcceptanceCounts) -> None:
    """Store what `recall` finds. If nothing can be stored, the next run starts without counts."""
    if acceptance.cells:
        store(_file(bundle), acceptance)


def _possible(cells: Mapping[str, tuple[float, ...]]) -> Counts:
    """Returns the possible counts; impossible ones come from a damaged file."""
    found = {}
    for cell, counts in cells.items():
        accepted, seen = counts if len(counts) == 2 else (0.0, 0.0)
        if cell.isdecimal() and len(cell) < 10 and 0 <= accepted <= seen and 0 < seen < math.inf:
            found[int(cell)] = accepted, seen
    return found


def _file(bundle: Bundle) -> Path | None:
    return cache_file("acceptance", (_VERSION, bundle.digest))
