"""A model on its engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgespec.bundle import Bundle, Role
from edgespec.runtime.engines import Engine, Executable, joined_names
from edgespec.runtime.execution.feeds import Feeds, FeedSizes, Rooms, Rope, rooms
from edgespec.runtime.execution.stage_files import bias_off, role_shapes, stage_file, stages_for
from edgespec.runtime.shapes import ANY_SHAPES, ROW_BUCKETS, Shapes
from edgespec.system.shutdown import UNDERWAY


@dataclass(frozen=True)
class TextSizes:
    """How large texts and the calls that read them get, so that memory holds them.

    Attributes:
        prefill_chunk: rows of one call that reads a text, one of `ROW_BUCKETS`.
        cache_rows: rows that a cache is expected to grow to; 0: not known.
    """

    prefill_chunk: int = ROW_BUCKETS[-1]
    cache_rows: int = 0


class Model:
    """One role of a bundle, compiled; shared by any number of texts, one call at a time.

    Attributes:
        role: the manifest's description.
        executables: its stages.
        device: where it runs, as `engine:device`; several are joined by `+`.
        seconds: time spent inside the engines so far.
        sizes: of the texts to come.
        shapes: that calls are rounded up to.
        exact: a row is the same in all company, bit for bit: known once it was tried.
    """

    def __init__(
        self,
        role: Role,
        executables: Sequence[Executable],
        device: str,
        shapes: Shapes = ANY_SHAPES,
    ) -> None:
        self.role = role
        self.device = device
        self.shapes = shapes
        self.exact = False
        self.seconds = 0.0
        self.executables = tuple(executables)
        self.sizes = TextSizes()
        self._feeds: dict[FeedSizes, Feeds] = {}
        self._rooms: tuple[int, Rooms] = (0, {})  # of the biases, for a capacity
        self._ropes = {table.name: Rope(table) for table in role.rope_tables}

    @classmethod
    def load(
        cls, bundle: Bundle, name: str, engines: Engine | Sequence[Engine], threads: int
    ) -> Model:
        """Compile the role `name` of a bundle.

        Args:
            bundle: where it is.
            name: of the role.
            engines: for all stages, or one for each.
            threads: for each engine's operators.

        Raises:
            DeviceError: if an engine refuses a stage, or there is none for it.
            InputError: if engines have no shapes in common.
        """
        role = bundle.manifest.roles[name]
        if not isinstance(engines, Sequence):
            engines = [engines] * len(role.stages)
        executables = []
        for number, engine in enumerate(engines):
            with UNDERWAY:
                file = stage_file(bundle, name, number, engine)
                executables.append(engine.compile(file, threads))
        role = replace(
            role,
            bias_off=bias_off(bundle, name, engines),
            stages=stages_for(bundle, name, engines),
        )
        shapes = role_shapes(role, tuple(engines))
        return cls(role, executables, joined_names(engine.name for engine in engines), shapes)

    @property
    def ordered(self) -> bool:
        """Whether rows are to be alike in all company: all stages have the attention for it."""
        return self.role.ordered

    def feeds(self, rows: int, capacity: int, logit_rows: int, scratch: int = 0) -> Feeds:
        """The input buffers of one shape, made once; see `FeedSizes`."""
        sizes = FeedSizes(rows, capacity, logit_rows, scratch)
        if sizes not in self._feeds:
            # Texts grow: buffers of smaller capacities are not needed again soon.
            self._feeds = {k: v for k, v in self._feeds.items() if k.capacity == capacity}
            if self._rooms[0] != capacity:
                self._rooms = capacity, rooms(self.role, capacity)
            self._feeds[sizes] = Feeds(self.role, self._ropes, sizes, self._rooms[1])
        return self._feeds[sizes]
