"""A model whose layers run on several devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.sequences.model import Graph
from edgespec.runtime.sequences.pool import HostMemory, PoolMemory


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


class Chain:
    """Graphs that each read what those before them return, called as one.

    It gives each layer's pool the memory of the device that the layer runs on. All have as many
    slots as the device wants that wants most.

    Args:
        links: the layers, from the first on; one of them at least has a memory of its own.
    """

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

    def resized(self, name: str, shape: Sequence[int], dtype: type[Any], old: Any) -> Any:
        """See `PoolMemory`."""
        layer = int(name.rpartition(".")[2])
        memory = next(each.memory for each in reversed(self._links) if each.first <= layer)
        return (memory or HostMemory()).resized(name, shape, dtype, old)
