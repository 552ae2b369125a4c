"""Where the models of a bundle run, and in how much memory: from options to a plan."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgespec.bundle import DRAFT, TARGET, Bundle
from edgespec.errors import DeviceError, InputError
from edgespec.llm.load.adapter_files import held_bytes
from edgespec.llm.load.options import LAYER_SKIP, MODEL_DRAFTS, LoadOptions
from edgespec.runtime.kernels import library, missing_kernels
from edgespec.runtime.plan import (
    HOST,
    LONG_CHUNK,
    MemoryPlan,
    Placement,
    PlacementRequest,
    plan,
)
from edgespec.runtime.speculation.generation import AUTO
from edgespec.system.machine import available_bytes

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
                parts = replace(
                    place,
                    slots=place.slots or last.slots,
                    behind=(first, last),
                    prompts=_long_chunk(bundle, place, last),
                )
                place = last if first <= 0 else parts
                own_bytes = last_bytes
        if bundle.manifest.roles[name].native.adopted:
            place = replace(place, native=False)
        if own_bytes is not None:
            free[GPU] = own_bytes
        _require_suited(bundle, name, place)
        if name == TARGET and options.lora and not (place.native and place.behind is None):
            raise DeviceError(
                f"{bundle.path}: adapters add to what edgespec's compiled operators compute on the "
                f"CPU, not to what runs on {place.device}: use --device cpu without --gpu-layers, "
                "or merge them into the model"
            )
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


def plan_memory(bundle: Bundle, options: LoadOptions, stay: Sequence[MemoryUse] = ()) -> MemoryPlan:
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
    skipping = options.draft == LAYER_SKIP
    added = held_bytes(options.adapter_files)
    request = PlacementRequest(places, asked, options.sessions, wanted, skipping, limits, added)
    return plan(bundle, request, free)


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


def _with_target(bundle: Bundle, places: Mapping[str, Placement], asked: str) -> Placement:
    """Returns where a draft head runs that reads keys and values of the target.

    Raises:
        DeviceError: if these lie on two devices, or another one was asked for.
    """
    sources = {each.source for each in bundle.manifest.roles[DRAFT].sublayers}
    layers = [each for each in sources if each is not None]
    found, *others = {replace(places[TARGET].of(each), behind=None, prompts=0) for each in layers}
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


def _long_chunk(bundle: Bundle, place: Placement, last: Placement) -> int:
    """Returns the rows of a prompt that the device of the last layers may read through all; or 0.

    Layers with states stay where they are.
    """
    from edgespec.runtime.engines.portable import examined  # loads the onnx package

    native = bundle.target.native
    if not place.native or native.recurrent or native.adopted:
        return 0
    return LONG_CHUNK if examined(last.device).layerwise else 0


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
    if not everywhere and role.both_ways:
        raise DeviceError(
            f"{bundle.path}: the rows of a text see each other in its {name}, which needs "
            f"edgespec's compiled operators, and cannot run on {placed.device}: use --device cpu, "
            "where they are installed"
        )
    if placed.rows is not None and role.block is not None and placed.rows < role.block.rows:
        raise DeviceError(
            f"{bundle.path}: its {role.architecture} head drafts blocks of {role.block.rows} rows, "
            f"and calls of {placed.device} have {placed.rows}: name it with more, as "
            f"{placed.device.partition('#')[0]}#{role.block.rows}x{placed.slots}"
        )
