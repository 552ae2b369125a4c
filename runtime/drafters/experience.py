"""What drafting has learned with one bundle, kept from text to text."""

from __future__ import annotations

from collections import defaultdict

from edgespec.runtime.calibration import Calibration
from edgespec.runtime.successors import Successors


class Experience:
    """What the sources of later texts start from.

    Attributes:
        successors: the recycling table.
    """

    def __init__(self, successors: Successors) -> None:
        self.successors = successors
        self._calibrations: defaultdict[tuple[str, bool], Calibration] = defaultdict(Calibration)

    def calibration(self, source: str, sampled: bool) -> Calibration:
        """Acceptance of a source's drafts; greedy and sampled texts have one each."""
        return self._calibrations[source, sampled]
