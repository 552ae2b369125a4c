"""Models of a bundle on the devices of this machine: where they may run, and their loading."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.bundle import DRAFT, TARGET, Bundle
from edgespec.errors import DeviceError, InputError
from edgespec.llm.loading import MODEL_DRAFTS, LoadOptions
from edgespec.llm.portable import portable_graph
from edgespec.runtime.drafters.assistant import AssistantGraph
from edgespec.runtime.drafters.block import BlockGraph
from edgespec.runtime.drafters.head import HeadGraph
from edgespec.runtime.kernels import library, missing_kernels
from edgespec.runtime.plan import HOST, MemoryPlan, Placement, PlacementRequest, plan
from edgespec.runtime.sequences.chain import Chain, Link
from edgespec.runtime.sequences.model import NATIVE, Graph, Model, RotationTable
from edgespec.runtime.sequences.pool import KVPool, PoolMemory
from edgespec.runtime.sequences.recurrent import RecurrentPool
from edgespec.runtime.speculation.generation import AUTO
from edgespec.system.machine import available_bytes, default_threads

_log = logging.getLogger(__name__)

GPU = "gpu"
"""The device that stands for the best GPU, or for the CPU if there is none; and its memory."""


def loaded_roles(bundle: Bundle, options: LoadOptions) -> list[str]:
    """Returns the names of the roles that are loaded."""
    drafts = bundle.draft is not None and options.draft in (AUTO, *MODEL_DRAFTS)
    return [TARGET, DRAFT] if drafts else [TARGET]


def placements(bundle: Bundle, options: LoadOptions) -> tuple[dict[str, Placement], dict[str, int]]:
    """Finds where the roles that are loaded run, and the free bytes of each memory there.

    Raises:
        DeviceError: if a device is not known or cannot be used.
    """
    free = {HOST: available_bytes()}
    places = dict[str, Placement]()
    for name in loaded_roles(bundle, options):
        place, own_bytes = _placed(options.device if name == TARGET else options.draft_device)
        if name == TARGET and options.gpu_layers:
            last, last_bytes = _placed(GPU)
            first = bundle.target.layers - options.gpu_layers
            if last.device != place.device:
                parts = replace(place, slots=place.slots or last.slots, behind=(first, last))
                place = last if first <= 0 else parts
                own_bytes = last_bytes
        if bundle.manifest.roles[name].native.adopted:
            place = replace(place, native=False)
        if own_bytes is not None:
            free[GPU] = own_bytes
        _require_suited(bundle, name, place)
        places[name] = place
    if DRAFT in places and bundle.manifest.roles[DRAFT].attends_target:
        places[DRAFT] = _with_target(bundle, places, options.draft_device)
    return places, free


@dataclass(frozen=True)
class MemoryUse:
    """The memory of a loaded model, for the plan of another one in this process.

    Attributes:
        plan: what it is loaded as.
        held: bytes by memory that its weights, where they are not mapped, and slots have now.
    """

    plan: MemoryPlan
    held: Mapping[str, int]


def planned(bundle: Bundle, options: LoadOptions, stay: Sequence[MemoryUse] = ()) -> MemoryPlan:
    """Plans a bundle's memory on its devices, and logs what gives way to it.

    Raises:
        MemoryLimitError: if the memory has no room for what was asked for.
        EdgespecError: as `find_plan`.
    """
    found = find_plan(bundle, options, stay)
    for line in found.dropped:
        _log.warning("%s", line)
    found.require_fit()
    return found


def find_plan(
    bundle: Bundle,
    options: LoadOptions,
    stay: Sequence[MemoryUse] = (),
    go: Sequence[MemoryUse] = (),
) -> MemoryPlan:
    """Plans a bundle's memory on its devices; it may not fit.

    Args:
        bundle: the bundle.
        options: the user's options.
        stay: other models of this process, which may take all that is planned for them.
        go: others that will be closed before.

    Raises:
        DeviceError: if a device is not known or cannot be used.
        InputError: if the context is longer than the model was trained for.
    """
    asked = options.context
    trained = bundle.target.context_length
    if asked is not None and asked > trained:
        raise InputError(f"context is {asked}: the model was trained for at most {trained} tokens")
    places, free = placements(bundle, options)
    limits = dict(options.limits)
    for memory, size in (pair for each in (*stay, *go) for pair in each.held.items()):
        if memory in free:
            free[memory] += size
    for demand in (demand for each in stay for demand in each.plan.demands):
        own = demand.total - demand.baseline
        for sizes, taken in ((free, own + demand.mapped), (limits, own)):
            if demand.memory in sizes:
                sizes[demand.memory] -= taken
    wanted = options.draft in MODEL_DRAFTS
    return plan(bundle, PlacementRequest(places, asked, options.sessions, wanted, limits), free)


def with_sessions(
    bundle: Bundle, options: LoadOptions, most: int, stay: Sequence[MemoryUse] = ()
) -> LoadOptions:
    """Returns options with as many `sessions` as have room beside the same models and context.

    Args:
        bundle: the bundle.
        options: the user's options, whose `sessions` is not looked at.
        most: the largest number to try.
        stay: see `find_plan`.

    Raises:
        EdgespecError: as `find_plan`.
    """
    one = replace(options, sessions=1)
    alone = find_plan(bundle, one, stay)
    for number in range(most, 1, -1):
        made = replace(one, sessions=number)
        found = find_plan(bundle, made, stay)
        if found.fits and (found.context, found.roles) == (alone.context, alone.roles):
            return made
    return one


def load_model(
    bundle: Bundle,
    name: str,
    placed: Placement,
    threads: int | None = None,
    slots: int | None = None,
    features: bool = False,
    accuracy: int | None = None,
) -> Model:
    """Loads a role, which has a native graph; its portable graph is made where that runs.

    Args:
        bundle: the bundle.
        name: name of the role.
        placed: where it runs.
        threads: number of threads on the CPU; None: one for each physical core.
        slots: largest number of slots of its pool; None for any.
        features: whether passes give the features that a draft head reads, and itself gives.
        accuracy: of a portable graph, see `edgespec.export.portable.lower`; None: the device's.

    Raises:
        DeviceError: if the device refuses the graph.
        InputError: if a portable graph cannot be made.
    """
    role = bundle.manifest.roles[name]
    graph, memory = _graph(bundle, name, placed, threads, features, accuracy)
    device = NATIVE if placed.native else placed.device
    if placed.behind is not None:
        device += f"+{placed.behind[1].device}"
    if role.is_head:
        width = len(role.taps) * bundle.target.hidden_size
        blocks = role.block is not None and not role.block.features
        graph = BlockGraph(graph, width) if blocks else HeadGraph(graph, width, role.hidden_size)
    recurrent = RecurrentPool(role.native.recurrent) if role.native.recurrent else None
    pool = KVPool(role.native.pools, placed.kv(role), slots, memory, recurrent)
    made = Model(graph, pool, _ropes(bundle, name), device=device)
    made.gives_features = features
    if role.vision is not None:
        made.picture_width = role.vision.streams * role.hidden_size
    return made


def load_part(
    bundle: Bundle, target: Model, skipped: Collection[int], threads: int | None = None
) -> Model:
    """Loads the target without some of its sublayers, over the pool of the whole target.

    Raises:
        DeviceError: if ONNX Runtime refuses the graph.
        ValueError: if the graph has no such sublayers, or needs them.
    """
    from edgespec.runtime.engines.parts import without  # loads the onnx package

    file = bundle.path / bundle.target.native.graph
    graph = _native(file, threads, without(file, skipped))
    made = Model(graph, target.pool, _ropes(bundle, TARGET), target.prefixes, target.device)
    made.picture_width = target.picture_width
    return made


def load_scoring(bundle: Bundle, name: str, count: int, threads: int | None = None) -> Graph | None:
    """Loads the native graph of a role so that it scores the first tokens alone.

    Returns:
        The graph, over the same weights; None if the role scores no more, or not in one matrix.

    Raises:
        DeviceError: if ONNX Runtime refuses the graph.
    """
    role = bundle.manifest.roles[name]
    file = bundle.path / role.native.graph
    if role.vocab_size <= count or role.native.adopted or library() is None:
        return None
    from edgespec.runtime.engines.parts import scoring  # loads the onnx package

    try:
        part = scoring(file, count)
    except ValueError:
        return None
    return _native(file, threads, part)


def load_assistant(
    bundle: Bundle, target: Model, placed: Placement, threads: int | None = None
) -> Model:
    """Loads a draft head that reads keys and values of the target, over the target's pool.

    Raises:
        DeviceError: if the device refuses the graph.
    """
    graph, _ = _graph(bundle, DRAFT, placed, threads, features=True, accuracy=None)
    graph = AssistantGraph(graph, bundle.target.hidden_size, bundle.target.hidden_size)
    device = NATIVE if placed.native else placed.device
    return Model(graph, target.pool, _ropes(bundle, DRAFT), target.prefixes, device)


def _with_target(bundle: Bundle, places: Mapping[str, Placement], asked: str) -> Placement:
    """Returns where a draft head runs that reads keys and values of the target.

    Raises:
        DeviceError: if these lie on two devices, or another one was asked for.
    """
    sources = {each.source for each in bundle.manifest.roles[DRAFT].sublayers}
    layers = [each for each in sources if each is not None]
    found, *others = {replace(places[TARGET].of(each), behind=None) for each in layers}
    kind = bundle.manifest.roles[DRAFT].architecture
    what = f"{bundle.path}: its {kind} head reads keys and values of the target"
    if others:
        raise DeviceError(
            f"{what}, which lie on {found.device} and {others[0].device}: use another "
            "--gpu-layers, or --draft lookup"
        )
    if asked != HOST and places[DRAFT].device != found.device:
        raise DeviceError(
            f"{what}, and cannot run on {asked} while that runs on {found.device}: leave "
            "--draft-device out"
        )
    return found


def _placed(device: str) -> tuple[Placement, int | None]:
    """Returns where a role on a device runs, and the free bytes of the device's own memory."""
    if device == GPU:
        from edgespec.runtime.engines.portable import best_gpu  # loads the onnx package

        if (device := best_gpu() or HOST) == HOST:
            _log.warning(
                "no GPU can be used, so the CPU is used instead: `edgespec devices` says why"
            )
    if device == HOST:
        if library() is None:
            _log.warning("%s", missing_kernels())
        return Placement(HOST, HOST, library() is not None), None
    from edgespec.runtime.engines.portable import examined

    found = examined(device)
    if found.reason is not None:
        raise DeviceError(f"device {device}: {found.reason}")
    memory = HOST if found.own_bytes is None else GPU
    return Placement(
        device, memory, False, found.slots, found.half, rows=found.rows
    ), found.own_bytes


def _require_suited(bundle: Bundle, name: str, placed: Placement) -> None:
    role = bundle.manifest.roles[name]
    if role.native.adopted and (placed.device != HOST or placed.behind is not None):
        raise DeviceError(
            f"{bundle.path}: its {name} was exported by another program, and runs on the CPU "
            f"alone, not on {placed.device}: use --device cpu"
        )
    everywhere = placed.native and (placed.behind is None or placed.behind[1].native)
    if not everywhere and role.recurrent:
        two = "" if placed.behind is None else f" and {placed.behind[1].device}"
        raise DeviceError(
            f"{bundle.path}: its {name} has recurrent layers, which need edgespec's compiled "
            f"operators, and cannot run on {placed.device}{two}: use "
            f"--{'draft-' if name == DRAFT else ''}device cpu, where they are installed"
            + (two and ", without --gpu-layers")
        )
    if placed.rows is not None and role.block is not None and placed.rows < role.block.rows:
        raise DeviceError(
            f"{bundle.path}: its {role.architecture} head drafts blocks of {role.block.rows} rows, "
            f"and calls of {placed.device} have {placed.rows}: name it with more, as "
            f"{placed.device.partition('#')[0]}#{role.block.rows}x{placed.slots}"
        )


def _graph(
    bundle: Bundle,
    name: str,
    placed: Placement,
    threads: int | None,
    features: bool,
    accuracy: int | None,
) -> tuple[Graph, PoolMemory | None]:
    """Opens a role's graph; returns it, and the memory of its pool if that is not numpy's."""
    role = bundle.manifest.roles[name]
    count = threads or default_threads()
    file = bundle.path / role.native.graph
    if role.native.adopted:
        from edgespec.runtime.engines.adopted import AdoptedGraph

        return AdoptedGraph(file, count), None

    def opened(place: Placement, part: bytes | None = None) -> tuple[Graph, PoolMemory | None]:
        if place.native:
            return _native(file, count, part, features), None
        from edgespec.runtime.engines.portable import accuracy_level, open_graph

        level = accuracy_level(place.device) if accuracy is None else accuracy
        made = portable_graph(bundle, name, level, place.half, part)
        graph = open_graph(place.device, made, count)
        return graph, graph

    if placed.behind is None:
        return opened(placed)
    from edgespec.runtime.engines.parts import cut  # loads the onnx package

    first, last = placed.behind
    try:
        parts = cut(file, first, role.hidden_size)
    except ValueError as error:
        raise DeviceError(
            f"{bundle.path}: its {name} cannot run on two devices ({error}): use another "
            "--gpu-layers, or none"
        ) from error
    chain = Chain([Link(0, *opened(placed, parts[0])), Link(first, *opened(last, parts[1]))])
    return chain, chain


def _native(
    file: Path, threads: int | None, part: bytes | None = None, features: bool = False
) -> Graph:
    """Opens a native graph, or a part of one over the whole one's weights."""
    from edgespec.runtime.engines.native import NativeGraph  # loads ONNX Runtime

    operators = library()
    whole = None if part is None else file
    assert operators is not None, "native graphs are placed where it is"
    return NativeGraph(part or file, operators, threads or default_threads(), features, whole)


def _ropes(bundle: Bundle, name: str) -> list[RotationTable]:
    role = bundle.manifest.roles[name]
    grid = None if role.vision is None else role.vision.grid
    sections = (0, 0) if grid is None else grid.sections
    return [
        RotationTable(each, sections) for each in role.rope_tables if each.name in role.native.ropes
    ]
