"""A model, compiled for its engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from edgespec.bundle import Bundle, Role
from edgespec.runtime.engines import Engine, Executable, Seating, joined_names
from edgespec.runtime.execution.feeds import BiasBuffers, Feeds, FeedSizes, Rope, bias_buffers
from edgespec.runtime.execution.stage_files import bias_off, role_shapes, stage_file, stages_for
from edgespec.runtime.shapes import ANY_SHAPES, ROW_BUCKETS, Shapes
from edgespec.system.shutdown import ENGINE_CALLS

_CAPACITIES = 4  # of passes of several texts, whose buffers are kept


@dataclass(frozen=True)
class TextSizes:
    """Limits on the size of calls and caches, chosen so that memory suffices.

    Attributes:
        prefill_chunk: largest number of rows of a call that reads a text, one of `ROW_BUCKETS`.
        cache_rows: number of rows that a cache is expected to grow to; 0 if not known.
        texts: number of texts that memory has caches for.
    """

    prefill_chunk: int = ROW_BUCKETS[-1]
    cache_rows: int = 0
    texts: int = 1


class Model:
    """One role of a bundle, compiled. Any number of texts share it, one call at a time.

    Attributes:
        role: description of the role in the manifest.
        executables: its compiled stages.
        device: where it runs, as `engine:device`; several are joined by `+`.
        seconds: time spent inside the engines so far.
        sizes: limits on the size of calls and caches.
        shapes: shapes that calls are rounded up to.
        exact: whether a row is bit for bit the same in all calls; False until it was measured.
        joins_texts: whether calls may hold rows of several texts.
        weight_bytes: bytes of the weights as stored.
    """

    def __init__(
        self,
        role: Role,
        executables: Sequence[Executable],
        device: str,
        shapes: Shapes = ANY_SHAPES,
        weight_bytes: int = 0,
    ) -> None:
        self.role = role
        self.device = device
        self.shapes = shapes
        self.weight_bytes = weight_bytes
        self.exact = False
        self.joins_texts = False
        self.seconds = 0.0
        self.executables = tuple(executables)
        self.sizes = TextSizes()
        self._feeds: dict[tuple[bool, int], _FeedsOfCapacity] = {}  # the last used last
        self._ropes = {table.name: Rope(table) for table in role.rope_tables}

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        name: str,
        engines: Engine | Sequence[Engine],
        threads: int,
        *,
        texts: bool = True,
    ) -> Model:
        """Compile the role `name` of a bundle.

        Args:
            bundle: the bundle.
            name: name of the role.
            engines: one engine for all stages, or one for each.
            threads: number of threads of each engine.
            texts: whether its calls are to hold several texts, where that is possible. The graph
                for it takes some microseconds more in each call.

        Raises:
            DeviceError: if an engine refuses a stage, or the bundle has none for it.
            InputError: if engines have no shapes in common.
        """
        role = bundle.manifest.roles[name]
        if not isinstance(engines, Sequence):
            engines = [engines] * len(role.stages)
        executables = []
        for number, engine in enumerate(engines):
            with ENGINE_CALLS:
                file = stage_file(bundle, name, number, engine, texts=texts)
                executables.append(engine.compile(file, threads))
        role = replace(
            role,
            bias_off=bias_off(bundle, name, engines),
            stages=stages_for(bundle, name, engines, texts=texts),
        )
        shapes = role_shapes(role, tuple(engines))
        device = joined_names(engine.name for engine in engines)
        weights = {file for stage in role.stages for file in (stage.data, stage.borrowed) if file}
        # Not by the manifest, which lists no files while a bundle is being made.
        size = sum((bundle.path / file).stat().st_size for file in weights)
        return cls(role, executables, device, shapes, size)

    @property
    def ordered(self) -> bool:
        """Whether all stages have ordered attention, which is to make rows alike in all calls."""
        return self.role.ordered

    def feeds(self, rows: int, capacity: int, logit_rows: int, scratch: int = 0) -> Feeds:
        """Returns the input buffers of one shape, which are kept; see `FeedSizes`."""
        return self.feeds_of(FeedSizes(rows, capacity, logit_rows, scratch))

    def feeds_of(self, sizes: FeedSizes) -> Feeds:
        """Returns the input buffers of one shape, which are kept."""
        several = sizes.texts > 1
        key = several, sizes.capacity
        found = self._feeds.pop(key) if key in self._feeds else None
        self._feeds[key] = found or _FeedsOfCapacity(self.role, self._ropes)
        # Texts grow, so buffers of other capacities are not needed again soon. Passes of several
        # texts may have some capacities by turns.
        alike = [each for each in self._feeds if each[0] is several]
        for each in alike[: -_CAPACITIES if several else -1]:
            del self._feeds[each]
        return self._feeds[key].of(sizes)

    @property
    def seats_on_device(self) -> bool:
        """Whether caches of several texts lie in a device's memory; of a model that takes them."""
        return any(cast(Seating, each).seats_on_device for each in self.executables)

    @property
    def can_join_texts(self) -> bool:
        """Whether the graphs of all stages take rows of several texts in a call."""
        return self.role.several_texts and not self.role.recurrent


class _FeedsOfCapacity:
    """Input buffers of calls with one capacity; the large ones are shared.

    Args:
        role: the role.
        ropes: tables of its positions.
    """

    def __init__(self, role: Role, ropes: Mapping[str, Rope]) -> None:
        self._role, self._ropes = role, ropes
        self._feeds: dict[FeedSizes, Feeds] = {}
        self._rows = 0  # that the biases suffice for
        self._biases: BiasBuffers = {}

    def of(self, sizes: FeedSizes) -> Feeds:
        """Returns the buffers of one shape."""
        if sizes not in self._feeds:
            rows = max(ROW_BUCKETS[-1], sizes.texts * sizes.most_rows)
            if self._rows < rows:
                self._rows, self._biases = rows, bias_buffers(self._role, sizes.capacity, rows)
            self._feeds[sizes] = Feeds(self._role, self._ropes, sizes, self._biases)
        return self._feeds[sizes]
