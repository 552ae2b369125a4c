"""Opens the graph of a role, native or portable, or parts of it, with its pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.bundle import DRAFT, Bundle
from edgespec.bundle.options import GraphForm
from edgespec.errors import DeviceError
from edgespec.llm.load.adapters import AdapterSet
from edgespec.llm.load.halves_trial import computes_in_halves
from edgespec.llm.load.portable import fused_of, in_halves, portable_file, portable_graph
from edgespec.llm.load.prompt_trial import reads_prompts
from edgespec.runtime.arrays import Array
from edgespec.runtime.drafters.block_head import BlockGraph
from edgespec.runtime.drafters.head import HeadGraph
from edgespec.runtime.kernels import library
from edgespec.runtime.plan import LONG_CALL, Placement
from edgespec.runtime.sequences.chain import Chain, Link, LongCalls
from edgespec.runtime.sequences.model import (
    NATIVE,
    Graph,
    LongPasses,
    Model,
    RotationTable,
)
from edgespec.runtime.sequences.pool import KVPool, PoolMemory
from edgespec.runtime.sequences.recurrent import RecurrentPool
from edgespec.runtime.sequences.whole_texts import WholeTextGraph
from edgespec.system.machine import default_threads, prefer_large_pages

NO_ADAPTERS = AdapterSet()
"""Those of a role that has none."""

_GraphAndMemory = tuple[Graph, PoolMemory | None]
"""A graph, and the memory of its pool if that is not numpy's."""


@dataclass(frozen=True)
class GraphOpener:
    """Opens the graph of a role, or parts of it.

    Attributes:
        bundle: the bundle.
        name: name of the role.
        threads: number of threads on the CPU; None: one for each physical core.
        features: whether passes give the features that a draft head reads, and itself gives.
        accuracy: of a portable graph, see `GraphForm`; None: the device's.
        adapters: what adds to a native graph.
        halves: whether its whole portable graph computes in half precision.
    """

    bundle: Bundle
    name: str
    threads: int | None = None
    features: bool = False
    accuracy: int | None = None
    adapters: AdapterSet = NO_ADAPTERS
    halves: bool = False

    def model(self, placed: Placement, slots: int | None = None) -> Model:
        """Opens the whole graph with a pool of its own.

        A portable graph computes in half precision where that was tried with success; likewise, a
        device reads prompts through layers that lie on the host.

        Args:
            placed: where it runs.
            slots: largest number of slots of the pool; None for any.

        Raises:
            DeviceError: if the device refuses the graph.
            InputError: if a portable graph cannot be made.
        """
        role = self.bundle.manifest.roles[self.name]
        if placed.prompts:
            return self._model(self._tried(placed, slots), slots)
        portable = not placed.native and placed.behind is None and not role.native.adopted
        if not portable or not role.writes:
            return self._model(placed, slots)
        from edgespec.runtime.engines.portable import examined

        graph = self._portable(placed)
        if in_halves(graph) is None:
            return self._model(placed, slots)
        halves = computes_in_halves(
            graph,
            examined(placed.device),
            role.vocab_size,
            lambda halves: replace(self, halves=halves)._model(placed, slots),
        )
        return replace(self, halves=halves)._model(placed, slots)

    def _tried(self, placed: Placement, slots: int | None) -> Placement:
        """Returns where a target on two devices runs, with what a trial says of its prompts."""
        from edgespec.runtime.engines.portable import examined

        assert placed.behind is not None, "another device reads prompts"
        first, there = placed.behind
        without = replace(placed, prompts=0)
        passed = reads_prompts(
            portable_file(self.bundle, self.name, self._form(there)),
            examined(there.device),
            first,
            self.bundle.manifest.roles[self.name].vocab_size,
            lambda long: self._model(placed if long else without, slots),
        )
        return placed if passed else without

    def _model(self, placed: Placement, slots: int | None) -> Model:
        """Opens the whole graph with a pool of its own, in the precision that is chosen."""
        role = self.bundle.manifest.roles[self.name]
        graph, memory = self.open_whole(placed)
        device = NATIVE if placed.native else placed.device
        if placed.behind is not None:
            device += f"+{placed.behind[1].device}"
        if role.is_head:
            width = len(role.taps) * self.bundle.target.hidden_size
            blocks = role.block is not None and not role.block.features
            head = HeadGraph(graph, width, role.hidden_size)
            graph = BlockGraph(graph, width) if blocks else head
        if role.both_ways:
            graph = WholeTextGraph(graph)
        recurrent = RecurrentPool(role.native.recurrent, memory) if role.native.recurrent else None
        pool = KVPool(role.native.pools, placed.kv(role), slots, memory, recurrent)
        made = Model(graph, pool, rotation_tables(self.bundle, self.name), device=device)
        made.long_passes = LongPasses(LONG_CALL, placed.prompts) if placed.prompts else None
        made.halves = self.halves
        made.gives_features = self.features
        made.adapts = bool(self.adapters.matrices)
        if role.vision is not None:
            made.picture_width = role.vision.streams * role.hidden_size
        return made

    def open_part(self, place: Placement, part: bytes | None = None) -> _GraphAndMemory:
        """Opens a graph, or a part of it, on one device."""
        if place.native:
            native = self.bundle.manifest.roles[self.name].native
            prefer_large_pages(self.bundle.path / native.data)
            return self._native(self.bundle.path / native.graph, part), None
        from edgespec.runtime.engines.portable import open_graph

        made = self._portable(place, part)
        if self.halves:
            made = in_halves(made) or made
        ranked = _ranked_columns(self.bundle, self.name, place)
        graph = open_graph(place.device, made, self.threads or default_threads(), ranked)
        return graph, graph

    def _portable(self, place: Placement, part: bytes | None = None) -> Path:
        """Returns the file of a portable graph, of a part of the role if one is given."""
        form = self._form(place)
        if form.fused is not None and part is not None:
            # What two devices share stays in single precision.
            form = replace(form, fused=form.fused - {"halves"})
        return portable_graph(self.bundle, self.name, form, part)

    def _form(self, place: Placement) -> GraphForm:
        """Returns what a portable graph has on a device."""
        from edgespec.runtime.engines.portable import accuracy_level, fused_operators

        level = accuracy_level(place.device) if self.accuracy is None else self.accuracy
        fused = fused_of(self.bundle, fused_operators(place.device))
        return GraphForm(level, place.half, fused)

    def open_whole(self, placed: Placement) -> _GraphAndMemory:
        """Opens the whole graph, which may run on two devices."""
        role = self.bundle.manifest.roles[self.name]
        file = self.bundle.path / role.native.graph
        if role.native.adopted:
            from edgespec.runtime.engines.adopted import AdoptedGraph

            return AdoptedGraph(file, self.threads or default_threads()), None
        if placed.behind is None:
            return self.open_part(placed)
        from edgespec.runtime.engines.parts import cut_graph, entered  # loads the onnx package

        first, last = placed.behind
        try:
            parts = cut_graph(file, first, role.hidden_size)
        except ValueError as error:
            raise DeviceError(
                f"{self.bundle.path}: its {self.name} cannot run on two devices ({error}): use "
                "another --gpu-layers, or none"
            ) from error
        graph, memory = self.open_part(placed, parts[0])
        if placed.prompts:
            layers = self._layerwise(first, last, entered(parts[1]))
            graph = LongCalls(graph, layers, LONG_CALL)
        chain = Chain([Link(0, graph, memory), Link(first, *self.open_part(last, parts[1]))])
        return chain, chain

    def _layerwise(self, count: int, there: Placement, told: Sequence[str]) -> Graph:
        """Opens the first layers on a device that computes them one after the other.

        Raises:
            DeviceError: if they cannot be parted, or the device refuses one.
            InputError: if a portable graph cannot be made.
        """
        from edgespec.runtime.engines.parts import key_scale, layers_of
        from edgespec.runtime.engines.portable import open_layers

        role = self.bundle.manifest.roles[self.name]
        file = self.bundle.path / role.native.graph
        try:
            begin, *layers = layers_of(file, count, role.hidden_size)
        except ValueError as error:
            raise DeviceError(f"layers cannot be computed one by one: {error}") from error
        graphs = [self._portable(there, each) for each in layers]
        scales = [key_scale(each) for each in layers]
        return open_layers(there.device, graphs, scales, self._native(file, begin), told)

    def _native(self, file: Path, part: bytes | None) -> Graph:
        """Opens a native graph, or a part of it, and what adapters add to it."""
        if not self.adapters.matrices:
            return native_graph(file, self.threads, part, self.features)
        from edgespec.runtime.engines.adapted import adapted  # loads the onnx package

        added = self.adapters
        content, weights = adapted(part or file, added.matrices, len(added.files))
        return native_graph(file, self.threads, content, self.features, weights)


def _ranked_columns(bundle: Bundle, name: str, placed: Placement) -> int | None:
    """Returns by how many tokens a role's rows are ranked on its device; None: they are not.

    They are where the role is a model that drafts the target's own tokens.
    """
    role = bundle.manifest.roles[name]
    others = role.is_head or role.tokenizer
    if name != DRAFT or others or placed.behind is not None:
        return None
    columns = role.output_tokens or role.vocab_size
    return columns if role.native.ids else min(columns, bundle.target.vocab_size)


def native_graph(
    file: Path,
    threads: int | None,
    part: bytes | None = None,
    features: bool = False,
    beside: Mapping[str, Array] | None = None,
) -> Graph:
    """Opens a native graph, or a part of one over the whole one's weights, and others beside.

    Raises:
        DeviceError: if ONNX Runtime refuses the graph.
    """
    from edgespec.runtime.engines.native import NativeGraph  # loads ONNX Runtime

    operators = library()
    whole = None if part is None else file
    assert operators is not None, "native graphs are placed where it is"
    threads = threads or default_threads()
    return NativeGraph(part or file, operators, threads, features, whole, beside)


def rotation_tables(bundle: Bundle, name: str) -> list[RotationTable]:
    """Returns the tables by which a role's graph rotates rows."""
    role = bundle.manifest.roles[name]
    grid = None if role.vision is None else role.vision.grid
    return [
        RotationTable(each, () if grid is None else grid.axes(len(each.inv_freq)))
        for each in role.rope_tables
        if each.name in role.native.ropes
    ]
