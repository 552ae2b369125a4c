"""A model on its engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgespec.bundle import Bundle, Role
from edgespec.runtime.buckets import ANY_SHAPES, ROW_BUCKETS, Shapes
from edgespec.runtime.ending import UNDERWAY
from edgespec.runtime.engines import Engine, Executable, common_shapes, joined
from edgespec.runtime.feeds import Feeds, Rope
from edgespec.runtime.stage_files import bias_off, stage_file


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
        self.seconds = 0.0
        self.executables = tuple(executables)
        self.sizes = TextSizes()
        self._feeds: dict[tuple[int, int, int], Feeds] = {}
        self._bias = np.empty(0, np.float32)  # for the largest; memory is given as it is written
        self._rope = Rope(role)

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
        shapes = common_shapes(tuple(engines))
        role = replace(role, bias_off=bias_off(bundle, name, engines))
        return cls(role, executables, joined(engine.name for engine in engines), shapes)

    def feeds(self, rows: int, capacity: int, logit_rows: int) -> Feeds:
        """The input buffers of one shape, made once."""
        shape = (rows, capacity, logit_rows)
        if shape not in self._feeds:
            # Texts grow: buffers of smaller capacities are not needed again soon.
            self._feeds = {k: v for k, v in self._feeds.items() if k[1] == capacity}
            room = ROW_BUCKETS[-1] * (capacity + ROW_BUCKETS[-1])
            if self._bias.size != room:
                self._bias = np.empty(room, np.float32)
            self._feeds[shape] = Feeds(self.role, self._rope, shape, self._bias)
        return self._feeds[shape]
