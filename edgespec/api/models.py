"""Models of a bundle on the devices of this machine: where they may run, and their loading."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from edgespec.api.loading import MODEL_DRAFTS, LoadOptions
from edgespec.api.portable import portable_graph
from edgespec.bundle import DRAFT, TARGET, Bundle
from edgespec.errors import DeviceError, InputError
from edgespec.runtime.drafters.head import HeadGraph
from edgespec.runtime.kernels import library, missing_kernels
from edgespec.runtime.plan import HOST, Placement, Plan, Wish, plan
from edgespec.runtime.sequences.model import NATIVE, Graph, Model, Rope
from edgespec.runtime.sequences.pool import KVPool, PoolMemory
from edgespec.runtime.sequences.recurrent import RecurrentPool
from edgespec.runtime.speculation.generation import AUTO
from edgespec.system.memory import available_bytes
from edgespec.system.processors import default_threads

_log = logging.getLogger(__name__)

GPU = "gpu"
"""The device that stands for the best GPU, or for the CPU if there is none; and its memory."""


def loaded_roles(bundle: Bundle, options: LoadOptions) -> list[str]:
    """Returns the names of the roles that are loaded."""
    drafts = bundle.draft is not None and options.draft in (AUTO, *MODEL_DRAFTS)
    return [TARGET, DRAFT] if drafts else [TARGET]


def placements(
    bundle: Bundle, options: LoadOptions
) -> tuple[dict[str, Placement], Mapping[str, int]]:
    """Finds where the roles that are loaded run, and the free bytes of each memory there.

    Raises:
        DeviceError: if a device is not known or cannot be used.
    """
    free, places = {HOST: available_bytes()}, dict[str, Placement]()
    for name in loaded_roles(bundle, options):
        device = options.device if name == TARGET else options.draft_device
        places[name], own_bytes = _placed(device)
        _require_suited(bundle, name, places[name])
        if own_bytes is not None:
            free[GPU] = own_bytes
    return places, free


def planned(bundle: Bundle, options: LoadOptions) -> Plan:
    """Plans a bundle's memory on its devices.

    Raises:
        DeviceError: if a device is not known or cannot be used.
        InputError: if the context is longer than the model was trained for.
        MemoryLimitError: if the memory has no room for what was asked for.
    """
    asked, trained = options.context, bundle.target.context_length
    if asked is not None and asked > trained:
        raise InputError(f"context is {asked}: the model was trained for at most {trained} tokens")
    places, free = placements(bundle, options)
    wanted = options.draft in MODEL_DRAFTS
    wish = Wish(places, asked, options.sessions, wanted, options.limits)
    found = plan(bundle, wish, free)
    for line in found.dropped:
        _log.warning("%s", line)
    found.require_fit()
    return found


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
    assert role.native is not None, "whoever loads it has checked it"
    graph, memory = _graph(bundle, name, placed, threads, features, accuracy)
    if role.is_head:
        width = len(role.taps) * bundle.target.hidden_size
        graph = HeadGraph(graph, width, role.hidden_size)
    kv = "fp16" if memory is not None and role.precision.kv == "int8" else role.precision.kv
    recurrent = RecurrentPool(role.native.recurrent) if role.native.recurrent else None
    pool = KVPool(role.native.pools, kv, slots, memory, recurrent)
    device = NATIVE if placed.native else placed.device
    return Model(graph, pool, _ropes(bundle, name), device=device)


def load_part(
    bundle: Bundle, target: Model, skipped: Collection[int], threads: int | None = None
) -> Model:
    """Loads the target without some of its sublayers, over the pool of the whole target.

    Raises:
        DeviceError: if ONNX Runtime refuses the graph.
        ValueError: if the graph has no such sublayers, or needs them.
    """
    from edgespec.runtime.engines.native import NativeGraph  # loads ONNX Runtime

    native, operators = bundle.target.native, library()
    assert native is not None, "whoever loads it has checked it"
    assert operators is not None, "the target runs with it"
    file = bundle.path / native.graph
    graph = NativeGraph(file, operators, threads or default_threads(), skipped=skipped)
    return Model(graph, target.pool, _ropes(bundle, TARGET), target.prefixes, target.device)


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
    return Placement(device, HOST if found.own_bytes is None else GPU, False), found.own_bytes


def _require_suited(bundle: Bundle, name: str, placed: Placement) -> None:
    role = bundle.manifest.roles[name]
    if role.native is None:
        raise InputError(f"{bundle.path}: its {name} has no graph: export the checkpoint again")
    if not placed.native and (role.is_head or role.recurrent):
        kind = "a draft head" if role.is_head else "recurrent layers"
        raise DeviceError(
            f"{bundle.path}: its {name} has {kind}, which need edgespec's compiled operators: use "
            f"--{'draft-' if name == DRAFT else ''}device cpu, where they are installed"
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
    native, count = bundle.manifest.roles[name].native, threads or default_threads()
    assert native is not None, "whoever loads it has checked it"
    if placed.native:
        from edgespec.runtime.engines.native import NativeGraph  # loads ONNX Runtime

        operators = library()
        assert operators is not None, "the placement says so"
        return NativeGraph(bundle.path / native.graph, operators, count, features), None
    from edgespec.runtime.engines.portable import accuracy_level, open_graph

    level = accuracy_level(placed.device) if accuracy is None else accuracy
    file = portable_graph(bundle, name, level)
    graph = open_graph(placed.device, file, count)
    return graph, graph


def _ropes(bundle: Bundle, name: str) -> list[Rope]:
    role = bundle.manifest.roles[name]
    assert role.native is not None, "whoever loads it has checked it"
    return [Rope(table) for table in role.rope_tables if table.name in role.native.ropes]
