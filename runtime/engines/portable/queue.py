"""Portable graphs that rank rows on their device, and make passes there that follow each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgespec.runtime.arrays import Floats
from edgespec.runtime.engines.portable.engine import QueuedPass, QueueRunner
from edgespec.runtime.engines.portable.file import GraphFile, Shape
from edgespec.runtime.engines.portable.graph import PortableGraph
from edgespec.runtime.engines.portable.pools import caches_of


class QueuedGraph(PortableGraph):
    """A portable graph of ranked rows, see `RankingGraph`.

    Args:
        device: see `PortableGraph`.
        file: likewise, with ranked rows.
        runner: likewise.
        rows: likewise; the last one is that of the longest call.
        shape: likewise.

    Attributes:
        longest: largest number of rows of a call.
    """

    def __init__(
        self,
        device: str,
        file: GraphFile,
        runner: QueueRunner,
        rows: Sequence[int],
        shape: Shape | None = None,
    ) -> None:
        super().__init__(device, file, runner, rows, shape)
        self.longest = self._rows[-1]
        self._queue = runner

    def best(self, calls: Sequence[Mapping[str, Any]]) -> list[Floats]:
        """See `RankingGraph`."""
        sizes = [self._size(len(feeds["input_ids"])) for feeds in calls]
        pools = self._pools(calls[0])
        if caches := caches_of(pools):
            self.make_room(caches, sum(sizes))  # nothing may be moved between the calls
        found = self._queue.best(map(self._queued, calls), len(calls), pools)
        both = zip(calls, found, strict=True)
        return [np.asarray(each[: len(feeds["logit_rows"])]) for feeds, each in both]

    def _queued(self, feeds: Mapping[str, Any]) -> QueuedPass:
        rows = slice(0, len(feeds["input_ids"]))
        return QueuedPass(*self._inputs(self._pass(feeds), rows, feeds["logit_rows"]))
