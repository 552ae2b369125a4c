"""A bundle and a user's options to a memory plan: what may give way, and which limits hold."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from edgespec.bundle import DRAFT, TARGET, Bundle
from edgespec.errors import DeviceError, InputError
from edgespec.runtime.deployment.device_names import CPU, engines_of, gpu_engine, resolved
from edgespec.runtime.deployment.fixed_shapes import all_ready, is_open, longest_text
from edgespec.runtime.deployment.memory import (
    USUAL_CONTEXT,
    Wishes,
    context_choices,
    plan,
    text_rows,
)
from edgespec.runtime.deployment.options import (
    DEFAULT_TREE_WIDTH,
    FIXED_DRAFT_TOKENS,
    LoadOptions,
    default_tree,
)
from edgespec.runtime.deployment.placement import (
    GPU,
    borders,
    describe,
    on_gpu,
    parse,
    stage_devices,
)
from edgespec.runtime.deployment.plans import HOST, Plan
from edgespec.runtime.deployment.selection import Placement, engines_for, known_order
from edgespec.runtime.engines import (
    CallSizes,
    Engine,
    Engines,
    available_bytes,
    engine,
    simulated_name,
)
from edgespec.runtime.execution.sizes import role_bytes
from edgespec.runtime.execution.stage_files import multiplies, require_suited
from edgespec.runtime.shapes import ROW_BUCKETS, Shape, capacity_bucket
from edgespec.runtime.simulation import as_stated, load
from edgespec.system.processors import default_threads

_log = logging.getLogger(__name__)

# Rows of the target's pass in usual rounds with drafts, and of a draft model's calls in one.
_VERIFICATIONS = ((1,), (4,), (1 + FIXED_DRAFT_TOKENS,))
_DRAFT_CALLS = (1, DEFAULT_TREE_WIDTH, DEFAULT_TREE_WIDTH)


def fit(bundle: Bundle, options: LoadOptions) -> Plan:
    """The plan for a bundle, under a limit of the user's or what memory is free.

    What the user asked for by name never gives way: only a draft model or context of our choice
    does, and only the device `cpu` leaves the engine open. What gave way is one logged line, but
    for tokens beyond `USUAL_CONTEXT`.

    Raises:
        DeviceError: if a device is not known, no engine is installed, or it takes no such weights.
        InputError: if an option does not suit the bundle.
    """
    bundle = as_planned(bundle, options)
    wishes = _wishes(bundle, options)
    found = _planned(bundle, wishes, options)
    for role in found.engines:
        for each in wishes.engines[role][0]:  # another choice would be no better
            require_suited(bundle, role, each)
    context = wishes.contexts[0]
    if context < _context_length(options.context, bundle):
        _log.warning("a context of %d tokens, for the fixed shapes of the device", context)
    _explain(found, wishes.drafts[0], context)
    return found


def place_to_use(bundle: Bundle, options: LoadOptions) -> str | None:
    """Where layers are to run: as the user says, or with what fits of the last ones on the GPU.

    Returns:
        `LoadOptions.place`; None where the user named a device, or where there is no GPU with
        memory of its own, or none that runs the target's weights and has room for the layers behind
        the bundle's last border.
    """
    bundle = as_planned(bundle, options)
    devices, layers = _layer_devices(bundle, options), bundle.target.layers
    if devices is not None:
        return describe(devices)
    gpu = None if options.device != LoadOptions.device else gpu_of(options)
    if gpu is None or gpu.memory == HOST or not multiplies(gpu, bundle.target.precision):
        return None
    for first in (0, *borders(bundle.target)):
        place = describe(on_gpu(layers - first, layers, options.device))
        if fitted(bundle, replace(options, place=place)).fits:
            return place
    return None


def fitted(bundle: Bundle, options: LoadOptions) -> Plan:
    """As `fit`, of a bundle `as_planned`, and without a word about what gave way."""
    return _planned(bundle, _wishes(bundle, options), options)


def _wishes(bundle: Bundle, options: LoadOptions) -> Wishes:
    context, drafts = _context_length(options.context, bundle), _drafts(options.draft, bundle)
    wished = _placements(bundle, options, drafts[0])
    engines = {role: _candidates(bundle, role, at, context) for role, at in wished.items()}
    ready = {role: all_ready(bundle, role, choices[0]) for role, choices in engines.items()}
    first = {role: choices[0] for role, choices in engines.items()}
    context = _within_shapes(context, bundle, options, first, ready)
    return Wishes(
        contexts=context_choices(context) if options.context is None else (context,),
        drafts=drafts,
        engines=engines,
        tree=default_tree(options.draft),
        width=DEFAULT_TREE_WIDTH,
        texts=options.sessions,
        ready=ready,
    )


def _planned(bundle: Bundle, wishes: Wishes, options: LoadOptions) -> Plan:
    return plan(bundle, wishes, _limits(options, wishes.all_engines))


def placements(bundle: Bundle, options: LoadOptions, planned: Plan) -> dict[str, Placement]:
    """Where the roles of a plan go; the engine is only left open where all fit."""
    bundle = as_planned(bundle, options)
    found = _placements(bundle, options, planned.draft)
    for role, placement in found.items():
        first = _candidates(bundle, role, placement, planned.context)[0]
        names, at = planned.engines[role], placement.device
        wished = (at,) * len(names) if isinstance(at, str) else at
        expected = tuple(
            name if is_open(each) else each.name for each, name in zip(first, names, strict=True)
        )
        if names != expected:
            found[role] = replace(placement, device=names)
        elif any(map(is_open, first)):  # the engines of other stages stay as open as they were
            shaped = zip(first, names, wished, strict=True)
            device = tuple(name if is_open(each) else wish for each, name, wish in shaped)
            found[role] = replace(placement, device=device)
    return found


def target_engines(bundle: Bundle, options: LoadOptions) -> list[Engines]:
    """What may run the target's stages: every choice that its devices leave open, shapes chosen.

    Raises:
        DeviceError: if a device is not known, or no engine for it is installed.
        InputError: if the placement does not suit the bundle.
    """
    options = replace(options, draft="none")
    placement = _placements(bundle, options, options.draft)[TARGET]
    choices = engines_for(bundle.target, placement)
    if any(map(is_open, choices[0])):
        placement = placements(bundle, options, fitted(bundle, options))[TARGET]
        choices = engines_for(bundle.target, placement)
    return choices


def as_planned(bundle: Bundle, options: LoadOptions) -> Bundle:
    """What is planned for: the bundle, or what it stands for on a simulated machine.

    Raises:
        InputError: if the machine cannot be read, or does not suit the bundle.
    """
    if options.machine is None:
        return bundle
    return as_stated(bundle, load(options.machine).models)


def described(bundle: Bundle, options: LoadOptions) -> str:
    """What is planned for, as people are told."""
    if options.machine is None:
        return str(bundle.path)
    stated = load(options.machine).models
    models = ", ".join(f"{role} as {stated[role].name}" for role in bundle.manifest.roles)
    return f"{bundle.path} (simulated on {options.machine}: {models})"


def _drafts(asked: str, bundle: Bundle) -> tuple[str, ...]:
    """What takes memory behind a draft source, and what may stand in for it."""
    if asked == "auto":
        return ("model", "lookup") if bundle.draft else ("lookup",)
    if asked == "model" and bundle.draft is None:
        raise InputError(
            f"{bundle.path} has no draft model: export it with --draft, or use --draft lookup"
        )
    if asked == "layer-skip" and not bundle.manifest.skip_sets:
        raise InputError(
            f"{bundle.path} has no skip sets: export it with --layer-skip auto, or use --draft auto"
        )
    return (asked,)


def _context_length(asked: int | None, bundle: Bundle) -> int:
    trained = bundle.target.context_length
    if asked is not None and asked > trained:
        raise InputError(f"context is {asked}: the model was made for {trained} tokens at most")
    return asked or trained


def _within_shapes(
    context: int,
    bundle: Bundle,
    options: LoadOptions,
    engines: Mapping[str, Engines],
    ready: Mapping[str, Collection[Shape]],
) -> int:
    """A context that fixed shapes have room for.

    Raises:
        InputError: if the user asked for a longer one.
    """
    asked = options.context is not None
    for role, used in engines.items():
        for each in used:
            rows = longest_text(each, ready[role], asked)
            seen = bundle.manifest.roles[role].window(context)
            if rows is not None and rows < text_rows(role, seen):
                context = rows - text_rows(role, 0)
    if context < (options.context or 2):
        raise InputError(
            f"context is {options.context or 2}: the fixed shapes of the device end at "
            f"{max(context, 0)} tokens: give it a larger capacity, as qnn:npu#8/32x4096"
        )
    return context


def _placements(bundle: Bundle, options: LoadOptions, draft: str) -> dict[str, Placement]:
    """Where roles are wished, and the calls of a usual round, by which engines are compared."""
    threads = options.threads or default_threads()
    rounds = ((1,),) if draft == "none" else _VERIFICATIONS
    wished = {TARGET: Placement(_target_device(bundle, options), threads, rounds)}
    if draft == "model":
        device = _full_name(options.draft_device, options)
        wished[DRAFT] = Placement(device, threads, (_DRAFT_CALLS,))
    return wished


def _target_device(bundle: Bundle, options: LoadOptions) -> str | tuple[str, ...]:
    devices = _layer_devices(bundle, options)
    if devices is None:
        return _full_name(options.device, options)
    full = tuple(_full_name(device, options) for device in devices)
    for name in dict.fromkeys(full):  # before anybody exports again for a device that is not
        engines_of(name)
    return stage_devices(bundle.target, full)


def _full_name(device: str, options: LoadOptions) -> str:
    """A device as users write it, to what engines are found by."""
    return resolved(device) if options.machine is None else simulated_name(device, options.machine)


def gpu_of(options: LoadOptions) -> Engine | None:
    """What the device `gpu` stands for; None where there is none."""
    if options.machine is None:
        return gpu_engine()
    with suppress(DeviceError):
        return engine(simulated_name(GPU, options.machine))
    return None


def _layer_devices(bundle: Bundle, options: LoadOptions) -> tuple[str, ...] | None:
    """The device of each of the target's layers, where the user placed them and there is a GPU."""
    layers = bundle.target.layers
    if options.place is not None:
        return parse(options.place, layers)
    if options.gpu_layers is not None and _full_name(GPU, options) != CPU:
        return on_gpu(options.gpu_layers, layers, options.device)
    return None


def _limits(options: LoadOptions, engines: Iterable[Engine]) -> dict[str, int]:
    """Bytes of each memory that may be used: all that is free, but where the user said less."""
    machine = options.machine
    host = available_bytes() if machine is None else load(machine).memory_bytes(HOST)
    free = {HOST: host, **{each.memory: each.available_bytes() for each in engines}}
    if options.limits.keys() - free.keys():  # of a GPU that is not used
        gpu = gpu_of(options)
        free |= {} if gpu is None else {gpu.memory: gpu.available_bytes()}
    for device in options.limits:
        if device not in free:
            raise InputError(
                f"memory of {device!r} is limited: there is only {', '.join(free)}: leave it out"
            )
    return free | options.limits


def _candidates(
    bundle: Bundle, role: str, placement: Placement, context: int
) -> tuple[Engines, ...]:
    """What a placement leaves open, what will be used first.

    Before they have been measured that is the most demanding one: where it fits, all do.
    """
    known = known_order(bundle, role, placement)
    if known:
        return known
    calls = CallSizes(ROW_BUCKETS[-1], capacity_bucket(context), ROW_BUCKETS[0])

    def need(candidate: Engines) -> int:
        return role_bytes(bundle, role, candidate, calls).total()

    choices = engines_for(bundle.manifest.roles[role], placement)
    return tuple(sorted(choices, key=need, reverse=True))


def _explain(planned: Plan, draft: str, context: int) -> None:
    """Log what gave way, in one line; nothing where nothing helped."""
    changes = []
    if not planned.fits:
        return
    if planned.draft != draft:
        changes.append(f"draft {planned.draft} instead of {draft}")
    if planned.context < min(context, USUAL_CONTEXT):  # few texts would miss more
        changes.append(f"a context of {planned.context} instead of {context} tokens")
    if changes:
        limits = ", ".join(f"{d.limit >> 20} MiB on {d.device}" for d in planned.devices)
        _log.warning("%s, to fit %s", " and ".join(changes), limits)
