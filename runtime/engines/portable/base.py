"""What an engine of portable graphs is."""

from __future__ import annotations

from typing import Protocol

from edgespec.runtime.engines.portable.graph import GraphFile, Runner, Shape


class Engine(Protocol):
    """A device of this machine.

    Attributes:
        name: its full name.
        hardware: its product's name.
        version: version of the library that runs it.
        own_bytes: free bytes of its own memory; None: it uses the host's.
        rows: numbers of rows that calls are rounded up to; empty for any.
        shape: the shape of all calls where none is named; None: they may have any.
    """

    name: str
    hardware: str
    version: str
    own_bytes: int | None
    rows: tuple[int, ...]
    shape: Shape | None

    def open(self, file: GraphFile, threads: int, shape: Shape | None) -> Runner:
        """Opens a graph.

        Args:
            file: the graph.
            threads: number of threads, on the CPU.
            shape: the shape of all calls; None if it is not fixed.

        Raises:
            DeviceError: if the engine refuses the graph.
        """
