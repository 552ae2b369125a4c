"""Times calls of several models in turns, so that other load affects all of them alike."""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING

from edgespec.runtime.execution.feeds import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgespec.runtime.execution.runner import Runner


class Turns:
    """Measured times of calls.

    Args:
        runners: runners of the models, each with a text, which does not change.
        rows: numbers of rows of calls.
        rounds: number of calls for each number of rows.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        runners: Sequence[Runner],
        rows: Sequence[int],
        rounds: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._seconds: dict[tuple[int, int], list[float]] = defaultdict(list)
        for count in rows:
            batch = Rows.chain([5] * count)
            for _ in range(rounds):
                for number, runner in enumerate(runners):
                    runner.verify(batch)  # pays for the change of shape
                    begin = clock()
                    runner.verify(batch)
                    self._seconds[count, number].append(clock() - begin)

    def ms(self, rows: int, number: int) -> float:
        """Returns a model's median milliseconds."""
        return round(median(self._seconds[rows, number]) * 1e3, 2)

    def ratio(self, rows: int, number: int) -> float:
        """Returns the median ratio of a model's calls to the first model's calls before them."""
        pairs = zip(self._seconds[rows, 0], self._seconds[rows, number], strict=True)
        return round(median(own / first for first, own in pairs), 3)
