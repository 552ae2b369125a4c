"""A bundle and a user's options to a memory plan: what may give way, and which limits hold."""

from __future__ import annotations

import logging
import os

import psutil

from edgespec.bundle import DRAFT, TARGET, Bundle
from edgespec.errors import InputError
from edgespec.options import DEFAULT_TREE_WIDTH, FIXED_DRAFT_TOKENS, LoadOptions, default_tree
from edgespec.runtime.buckets import ROW_BUCKETS, capacity_bucket
from edgespec.runtime.engines import CallSizes, Engine
from edgespec.runtime.memory import HOST, Plan, Wishes, context_choices, plan
from edgespec.runtime.selection import Placement, engines_of, known_order
from edgespec.runtime.sizes import stage_sizes

_log = logging.getLogger(__name__)


def fit(bundle: Bundle, options: LoadOptions) -> Plan:
    """The plan for a bundle, under a limit of the user's or what memory is free.

    What the user asked for by name never gives way: only a draft model or context of our choice
    does, and only the device `cpu` leaves the engine open. What gave way is one logged line.

    Raises:
        DeviceError: if a device is not known, or no engine is installed.
        InputError: if an option does not suit the bundle.
    """
    context, drafts = _context_length(options.context, bundle), _drafts(options.draft, bundle)
    wished = _placements(options, drafts[0])
    engines = {role: _candidates(bundle, role, at, context) for role, at in wished.items()}
    wishes = Wishes(
        contexts=context_choices(context) if options.context is None else (context,),
        drafts=drafts,
        engines=engines,
        tree=default_tree(options.draft),
        width=DEFAULT_TREE_WIDTH,
    )
    limits = {e.memory: e.available_bytes() for choices in engines.values() for e in choices}
    if isinstance(options.memory, int):
        limits[HOST] = options.memory
    found = plan(bundle, wishes, limits)
    _explain(found, drafts[0], context)
    return found


def placements(bundle: Bundle, options: LoadOptions, planned: Plan) -> dict[str, Placement]:
    """Where the roles of a plan go; the engine is only left open where all fit."""
    wished = _placements(options, planned.draft)
    return {
        role: placement
        if planned.engines[role] == _candidates(bundle, role, placement, planned.context)[0].name
        else Placement(planned.engines[role], placement.threads, placement.work)
        for role, placement in wished.items()
    }


def default_threads() -> int:
    """Physical cores that this process may use: a second thread per core slows matmuls down."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return min(physical, len(os.sched_getaffinity(0)))
    return physical


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


def _placements(options: LoadOptions, draft: str) -> dict[str, Placement]:
    """Where roles are wished, and the calls of a usual round, by which engines are compared."""
    threads = options.threads or default_threads()
    rows = 1 if draft == "none" else 1 + FIXED_DRAFT_TOKENS
    wished = {TARGET: Placement(options.device, threads, (rows,))}
    if draft == "model":
        levels = (1, DEFAULT_TREE_WIDTH, DEFAULT_TREE_WIDTH)
        wished[DRAFT] = Placement(options.draft_device, threads, levels)
    return wished


def _candidates(
    bundle: Bundle, role: str, placement: Placement, context: int
) -> tuple[Engine, ...]:
    """The engines behind a device, the one that will be used first.

    Before they have been measured that is the most demanding one: where it fits, all do.
    """
    known = known_order(bundle, role, placement)
    if known:
        return known
    stage = stage_sizes(bundle, role)
    calls = CallSizes(ROW_BUCKETS[-1], capacity_bucket(context), ROW_BUCKETS[0])

    def need(candidate: Engine) -> int:
        taken = candidate.footprint(stage, calls)
        return taken.weights + taken.repacked + taken.workspace

    return tuple(sorted(engines_of(placement.device), key=need, reverse=True))


def _explain(planned: Plan, draft: str, context: int) -> None:
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
