"""A model whose layers run on several devices."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.sequences.model import Graph, longest_part
from edgespec.runtime.sequences.pool import HostMemory, PoolMemory, Shapes

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Link:
    """Consecutive layers on one device.

    Attributes:
        first: number of the first layer.
        graph: makes their part of a pass.
        memory: of their pools; None: numpy's.
    """

    first: int
    graph: Graph
    memory: PoolMemory | None


class LongCalls:
    """A graph whose long calls another one makes.

    Trees of many texts are no long call: rows of a text must not depend on others beside it.

    Args:
        usual: makes all others, and those that the other one has no room for.
        long: makes those in which one sequence has `rows` rows and more.
        rows: see above.
    """

    def __init__(self, usual: Graph, long: Graph, rows: int) -> None:
        self._usual = usual
        self._long = long
        self._rows = rows

    def __call__(self, feeds: Mapping[str, Array]) -> Mapping[str, Floats]:
        """See `Graph`."""
        if longest_part(feeds) >= self._rows:
            try:
                return self._long(feeds)
            except DeviceError as error:  # what it wrote to pools is written anew
                _log.warning("a prompt is read on the CPU: %s", error)
        return self._usual(feeds)


class Chain:
    """Graphs that each read what those before them return, called as one.

    It gives each layer's pool the memory of the device that the layer runs on. All have as many
    slots as the device wants that wants most.

    Args:
        links: the layers, from the first on; one of them at least has a memory of its own.
    """

    shrinks = False

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Floats]:
        """See `Graph`."""
        known = dict(feeds)
        outputs = dict[str, Floats]()
        for each in self._links:
            known |= (outputs := dict(each.graph(known)))
        return outputs

    def capacity(self, before: int, needed: int) -> int:
        """See `PoolMemory`."""
        memories = [each.memory for each in self._links if each.memory is not None]
        return max(each.capacity(before, needed) for each in memories)

    def resize(self, arrays: dict[str, Any], shapes: Shapes) -> None:
        """See `PoolMemory`."""
        for memory, names in self._parts(shapes):
            own = {name: arrays.pop(name) for name in names if name in arrays}
            try:
                memory.resize(own, {name: shapes[name] for name in names})
            finally:
                arrays |= own

    def read(self, arrays: Mapping[str, Any], slots: Sequence[int], axis: int) -> dict[str, Array]:
        """See `PoolMemory`."""
        found = dict[str, Array]()
        for memory, names in self._parts(arrays):
            found |= memory.read({name: arrays[name] for name in names}, slots, axis)
        return found

    def write(
        self, arrays: Mapping[str, Any], slots: Sequence[int], axis: int, rows: Mapping[str, Array]
    ) -> None:
        """See `PoolMemory`."""
        for memory, names in self._parts(arrays):
            memory.write({name: arrays[name] for name in names}, slots, axis, rows)

    def _parts(self, names: Iterable[str]) -> Iterator[tuple[PoolMemory, list[str]]]:
        """Yields the memory of each device, and which of these arrays lie there."""
        layers = {name: int(name.rpartition(".")[2]) for name in names}
        ends = [*(each.first for each in self._links[1:]), inf]
        for link, end in zip(self._links, ends, strict=True):
            own = [name for name, layer in layers.items() if link.first <= layer < end]
            if own:
                yield link.memory or HostMemory(), own
