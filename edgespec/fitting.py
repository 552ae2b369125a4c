"""A bundle and a user's options to a memory plan: what may give way, and which limits hold."""

from __future__ import annotations

import logging

from edgespec.bundle import DRAFT, TARGET, Bundle
from edgespec.errors import DeviceError
from edgespec.options import GenerationOptions, LoadOptions
from edgespec.runtime.buckets import ROW_BUCKETS, capacity_bucket
from edgespec.runtime.engines import CPU_ENGINES, CallSizes, Engine, engine
from edgespec.runtime.memory import HOST, Plan, Wishes, context_choices, plan
from edgespec.runtime.sizes import stage_sizes

_log = logging.getLogger(__name__)


def fit(bundle: Bundle, options: LoadOptions, draft: str, context: int) -> Plan:
    """The plan for a bundle, under a limit of the user's or what memory is free.

    What the user asked for by name never gives way: only a draft source or context of our choice
    does, and only the device `cpu` leaves the engine open.

    Args:
        bundle: to be loaded.
        options: of the user.
        draft: the draft source: `options.draft`, or what stands behind its `auto`.
        context: the same, or the longest that the model was made for.

    Raises:
        DeviceError: if a device is not known, or no engine is installed.
    """
    roles = (TARGET, DRAFT) if draft == "model" else (TARGET,)
    devices = {TARGET: options.device, DRAFT: options.draft_device}
    engines = {role: _candidates(bundle, role, devices[role], context) for role in roles}
    defaults = GenerationOptions()
    wishes = Wishes(
        contexts=context_choices(context) if options.context is None else (context,),
        drafts=("model", "lookup") if draft == "model" and options.draft == "auto" else (draft,),
        engines=engines,
        tree=defaults.num_assistant_tokens,
        width=defaults.tree_width,
    )
    limits = {e.memory: e.available_bytes() for choices in engines.values() for e in choices}
    if isinstance(options.memory, int):
        limits[HOST] = options.memory
    return plan(bundle, wishes, limits)


def device_for(bundle: Bundle, planned: Plan, role: str, asked: str) -> str:
    """Where a role goes: as asked, unless only a certain engine of that device fits."""
    if asked != "cpu":
        return asked
    most = _candidates(bundle, role, asked, planned.context)[0]
    return asked if planned.engines[role] == most.name else planned.engines[role]


def explain(planned: Plan, draft: str, context: int) -> None:
    """Log what gave way, in one line; nothing where nothing helped."""
    changes = []
    if not planned.fits:
        return
    if planned.draft != draft:
        changes.append(f"draft {planned.draft} instead of {draft}")
    if planned.context != context:
        changes.append(f"a context of {planned.context} instead of {context} tokens")
    if changes:
        limits = ", ".join(f"{d.limit >> 20} MiB on {d.device}" for d in planned.devices)
        _log.warning("%s, to fit %s", " and ".join(changes), limits)


def _candidates(bundle: Bundle, role: str, device: str, context: int) -> tuple[Engine, ...]:
    """The engines behind a device, the most demanding first: where that fits, all do."""
    if device != "cpu":
        return (engine(device),)
    found = []
    for name in CPU_ENGINES:
        try:
            found.append(engine(name))
        except DeviceError as error:
            _log.info("%s", error)
    if not found:
        raise DeviceError(f"none of {', '.join(CPU_ENGINES)} is installed: install one")
    stage = stage_sizes(bundle, role)
    calls = CallSizes(ROW_BUCKETS[-1], capacity_bucket(context), ROW_BUCKETS[0])

    def need(candidate: Engine) -> int:
        taken = candidate.footprint(stage, calls)
        return taken.weights + taken.repacked + taken.workspace

    return tuple(sorted(found, key=need, reverse=True))
