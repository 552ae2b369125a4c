"""What an engine of portable graphs does: it opens a file, and runs it over pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from edgespec.runtime.arrays import Array, Floats, Ids
from edgespec.runtime.engines.portable.file import GraphFile, Shape
from edgespec.runtime.engines.portable.places import Cache

FEW_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128)
"""Numbers of rows of a call where each further number costs an engine a plan."""


@dataclass(frozen=True)
class CallSlots:
    """The slots of a call, by the beginnings of their pools' names.

    Attributes:
        write: where rows go: `pool`, keys and values of each of S rows, those of padding repeat the
            last one; `rows`, likewise what recurrent layers keep; `states`, that of the state.
        read: which slots the graph reads of `rows` and `states`; it reads all others wholly.
    """

    write: Mapping[str, Ids]
    read: Mapping[str, Ids] = field(default_factory=dict)


class QueuedPass(NamedTuple):
    """A pass of a queue.

    Attributes:
        inputs: see `Runner.run`; the tokens of all but a queue's first pass are those that the one
            before found likeliest.
        slots: likewise.
    """

    inputs: Mapping[str, Array]
    slots: CallSlots


class Runner(Protocol):
    """An engine with a file."""

    def run(
        self, inputs: Mapping[str, Array], pools: Mapping[str, Any], slots: CallSlots
    ) -> Mapping[str, Floats]:
        """Makes a pass, and writes what is kept of it to slots of the pools.

        Args:
            inputs: all inputs but the pools.
            pools: the pools, as `resized` made them.
            slots: what is read and written of them.

        Returns:
            The other outputs, which the next pass may overwrite.

        Raises:
            DeviceError: if the engine fails.
        """

    def resized(self, shape: Sequence[int], dtype: np.dtype[Any], old: Any) -> Any:
        """Returns a pool of zeros that begins with the slots of `old`; None has none."""

    def move(self, caches: Sequence[Cache], order: Ids) -> None:
        """Moves rows of caches: at each place is then the row that was at that of `order`."""


class QueueRunner(Runner, Protocol):
    """An engine with a file of ranked rows, whose device works while the host goes on."""

    def best(
        self, passes: Iterator[QueuedPass], count: int, pools: Mapping[str, Any]
    ) -> list[Floats]:
        """Makes passes that follow each other, and waits for the last one alone.

        Args:
            passes: each is asked for when those before it were sent, so that the device works
                while it is prepared.
            count: their number.
            pools: see `Runner`.

        Returns:
            The output `BEST` of each.

        Raises:
            DeviceError: if the engine fails.
        """


class GraphEngine(Protocol):
    """A device of this machine.

    Attributes:
        name: its full name.
        hardware: its product's name.
        version: version of the library that runs it.
        own_bytes: free bytes of its own memory; None: it uses the host's.
        rows: numbers of rows that calls are rounded up to; empty for any.
        shape: the shape of all calls where none is named; None: they may have any.
        half: whether its graphs have all weights in half precision; None: where that is exact;
            False: it has no numbers in half precision.
        fused: what fused operators do there, see `GraphForm`; None: its graphs have standard
            operators.
        fused_rows: rows of the largest call that fused attention is right in; None: any.
        queues: whether its runners are those of queues, see `QueueRunner`.
    """

    name: str
    hardware: str
    version: str
    own_bytes: int | None
    rows: tuple[int, ...]
    shape: Shape | None
    half: bool | None
    fused: frozenset[str] | None
    fused_rows: int | None
    queues: bool

    def open(self, file: GraphFile, threads: int, shape: Shape | None) -> Runner:
        """Opens a graph.

        Args:
            file: the graph.
            threads: number of threads, on the CPU.
            shape: the shape of all calls; None if it is not fixed.

        Raises:
            DeviceError: if the engine refuses the graph.
        """
