"""Resolves a user's options to a request: the engines, contexts, drafts and memory limits to try.

Nothing is sized, measured or loaded here. What the user asked for explicitly has one choice; what
was left open has several, the preferred ones first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, product

from edgespec.bundle import DRAFT, TARGET, Bundle, Role
from edgespec.errors import InputError
from edgespec.runtime.deployment.demands import HOST
from edgespec.runtime.deployment.device_names import CPU, engines_of, gpu_engine, resolved
from edgespec.runtime.deployment.fixed_shapes import all_ready, longest_text
from edgespec.runtime.deployment.options import (
    DEFAULT_TREE_WIDTH,
    FIXED_DRAFT_TOKENS,
    MODEL_DRAFTS,
    LoadOptions,
    default_tree,
)
from edgespec.runtime.deployment.placement import GPU, on_gpu, parse, stage_devices
from edgespec.runtime.deployment.selection import RoleRequest, preferred
from edgespec.runtime.engines import (
    CallSizes,
    Engine,
    Engines,
    available_bytes,
)
from edgespec.runtime.execution.sizes import role_bytes
from edgespec.runtime.execution.stage_files import suited
from edgespec.runtime.shapes import (
    DRAFT_WINDOW,
    PARALLEL_ROWS,
    ROW_BUCKETS,
    SCRATCH_ROWS,
    capacity_bucket,
)
from edgespec.system.processors import default_threads

LEAST_CONTEXT = capacity_bucket(1)
"""Minimum of a default context in tokens: prompts would not fit into a shorter one."""

# Rows of the target's pass in typical rounds with drafts, and of a draft model's calls in a round.
_VERIFICATIONS = ((1,), (4,), (1 + FIXED_DRAFT_TOKENS,))
_DRAFT_CALLS = (1, DEFAULT_TREE_WIDTH, DEFAULT_TREE_WIDTH)


@dataclass(frozen=True)
class Request:
    """The choices that the user's options allow, each list with the preferred one first.

    Attributes:
        bundle: the bundle to run.
        roles: request for each role that may be loaded, by name.
        contexts: possible numbers of tokens of prompt and output, longest first.
        drafts: possible draft sources.
        tree: number of nodes of a draft tree.
        limits: memory that may be used, in bytes by device.
        width: number of rows of a draft model's calls.
        texts: number of caches of full length to have memory for.
    """

    bundle: Bundle
    roles: Mapping[str, RoleRequest]
    contexts: tuple[int, ...]
    drafts: tuple[str, ...]
    tree: int
    limits: Mapping[str, int] = field(default_factory=dict)
    width: int = DEFAULT_TREE_WIDTH
    texts: int = 1

    @property
    def all_engines(self) -> Iterator[Engine]:
        """All engines of all choices, with repetitions."""
        for each in self.roles.values():
            yield from chain.from_iterable(each.choices)


def resolve(bundle: Bundle, options: LoadOptions) -> Request:
    """Resolves a user's options for a bundle.

    Raises:
        DeviceError: if a device is not known, or no engine for it is installed.
        InputError: if an option does not suit the bundle.
    """
    drafts = _drafts(options.draft, bundle)
    context = context_length(options.context, bundle)
    threads = options.threads or default_threads()
    devices = {TARGET: _target_devices(bundle, options)}
    rounds: dict[str, tuple[tuple[int, ...], ...]] = {
        TARGET: ((1,),) if drafts[0] == "none" else _VERIFICATIONS
    }
    if drafts[0] in MODEL_DRAFTS:
        count = len(bundle.manifest.roles[DRAFT].stages)
        devices[DRAFT] = (resolved(options.draft_device),) * count
        rounds[DRAFT] = ((PARALLEL_ROWS,) if drafts[0] == "parallel" else _DRAFT_CALLS,)
    roles = {}
    for name, at in devices.items():
        choices = engines_for(bundle.manifest.roles[name], at)
        asked = RoleRequest(tuple(choices), threads, rounds[name])
        ordered = _ordered(bundle, name, asked, context)
        roles[name] = replace(asked, choices=ordered, ready=all_ready(bundle, name, ordered[0]))
    context = _within_shapes(context, bundle, options, roles)
    return Request(
        bundle=bundle,
        roles=roles,
        contexts=shorter(context) if options.context is None else (context,),
        drafts=drafts,
        tree=default_tree(options.draft),
        limits=_limits(options, chain.from_iterable(r.choices[0] for r in roles.values())),
        width=PARALLEL_ROWS if _is_parallel(bundle) else DEFAULT_TREE_WIDTH,
        texts=options.sessions,
    )


def suited_to(bundle: Bundle, options: LoadOptions) -> LoadOptions:
    """Returns a user's options as they are for a bundle: one that makes embeddings has no drafts.

    Raises:
        InputError: if the user asked for drafts there.
    """
    if bundle.target.embedding is None or options.draft == "none":
        return options
    for name in ("draft", "draft_memory"):
        value = getattr(options, name)
        if value != getattr(LoadOptions, name):
            raise InputError(
                f"{name} is {str(value)!r}, but {bundle.path} makes embeddings, and no text to "
                "draft for: leave it out"
            )
    return replace(options, draft="none")


def engines_for(role: Role, devices: tuple[str, ...]) -> list[Engines]:
    """Returns the choices of engines for a role's stages.

    Stages on the same device always get the same engine.

    Args:
        role: the role.
        devices: the device of each stage.

    Raises:
        DeviceError: if a device is not known, or no engine for it is installed.
    """
    names = tuple(map(resolved, devices))
    behind = {name: suited(role, engines_of(name)) for name in dict.fromkeys(names)}
    choices = (dict(zip(behind, picked, strict=True)) for picked in product(*behind.values()))
    return [tuple(choice[name] for name in names) for choice in choices]


def layer_devices(bundle: Bundle, options: LoadOptions) -> tuple[str, ...] | None:
    """Returns the device of each of the target's layers; None if the user did not place them.

    It is also None if `gpu_layers` is given and there is no GPU.
    """
    layers = bundle.target.layers
    if options.place is not None:
        return parse(options.place, layers)
    if options.gpu_layers is not None and resolved(GPU) != CPU:
        return on_gpu(options.gpu_layers, layers, options.device)
    return None


def context_length(asked: int | None, bundle: Bundle) -> int:
    """Returns the context in tokens: what the user asked for, or what the model was trained for.

    Raises:
        InputError: if the user asked for more than the model was trained for.
    """
    trained = bundle.target.context_length
    if asked is not None and asked > trained:
        raise InputError(f"context is {asked}: the model was trained for at most {trained} tokens")
    return asked or trained


def text_rows(role: str, context: int) -> int:
    """Returns the number of cache rows that a role needs for this many tokens."""
    return context + (SCRATCH_ROWS if role == DRAFT else 0)


def seen_tokens(bundle: Bundle, role: str, context: int) -> int:
    """Returns how many tokens of a text of this length a role sees at a time."""
    visible = bundle.manifest.roles[role].visible(context)
    return min(visible, DRAFT_WINDOW) if role == DRAFT else visible


def loaded_draft(bundle: Bundle) -> str:
    """Returns the draft source that uses the bundle's draft, one of `MODEL_DRAFTS`; or lookup."""
    if bundle.draft is None:
        return "lookup"
    return "head" if bundle.draft.is_head else "model"


def _drafts(asked: str, bundle: Bundle) -> tuple[str, ...]:
    """Returns the draft sources to plan memory for, the preferred one first."""
    own = loaded_draft(bundle)
    if asked == "auto":
        return tuple(dict.fromkeys((own, "lookup")))
    if asked in ("model", "head") and own != asked:
        what, option = ("model", "--draft") if asked == "model" else ("head", "--draft-head")
        raise InputError(
            f"{bundle.path} has no draft {what}: export it with {option}, or use --draft {own}"
        )
    if asked == "parallel" and not _is_parallel(bundle):
        raise InputError(
            f"{bundle.path} has no draft model that was trained to predict several tokens in one "
            "call: export it with such a --draft, whose config.json has a pard_token, or use "
            "--draft auto"
        )
    if asked == "layer-skip" and not bundle.manifest.skip_sets:
        raise InputError(
            f"{bundle.path} has no skip sets: export it with --layer-skip auto, or use --draft auto"
        )
    return (asked,)


def _is_parallel(bundle: Bundle) -> bool:
    """Whether there is a draft model that can predict several tokens in one call."""
    draft = bundle.draft
    return draft is not None and draft.mask_token is not None and not draft.tokenizer


def _target_devices(bundle: Bundle, options: LoadOptions) -> tuple[str, ...]:
    """Returns the device of each of the target's stages."""
    devices = layer_devices(bundle, options)
    if devices is None:
        return (resolved(options.device),) * len(bundle.target.stages)
    full = tuple(map(resolved, devices))
    for name in dict.fromkeys(full):  # an unknown device is told before missing cuts are
        engines_of(name)
    return stage_devices(bundle.target, full)


def _ordered(bundle: Bundle, name: str, asked: RoleRequest, context: int) -> tuple[Engines, ...]:
    """Returns the choices of a role, the preferred one first; see `RoleRequest`."""
    if len(asked.choices) == 1:
        return asked.choices
    by_cost = preferred(bundle, name, asked)
    if by_cost:
        return by_cost
    calls = CallSizes(ROW_BUCKETS[-1], capacity_bucket(context), ROW_BUCKETS[0])
    needs = {each: role_bytes(bundle, name, each, calls).total() for each in asked.choices}
    return tuple(sorted(asked.choices, key=needs.__getitem__, reverse=True))


def _within_shapes(
    context: int, bundle: Bundle, options: LoadOptions, roles: Mapping[str, RoleRequest]
) -> int:
    """Returns the context, shortened to what fixed shapes have room for.

    Raises:
        InputError: if the user asked for a longer one.
    """
    asked = options.context is not None
    for name, request in roles.items():
        for each in request.choices[0]:
            rows = longest_text(each, request.ready, asked)
            needed = text_rows(name, seen_tokens(bundle, name, context))
            if rows is not None and rows < needed:
                context = rows - text_rows(name, 0)
    if context < (options.context or 2):
        raise InputError(
            f"context is {options.context or 2}: the fixed shapes of the device allow "
            f"{max(context, 0)} tokens: give it a larger capacity, as qnn:npu#8/32x4096"
        )
    return context


def shorter(context: int) -> tuple[int, ...]:
    """Returns this context and the shorter ones to fall back to, longest first."""
    shorter = []
    size = LEAST_CONTEXT
    while size < context:
        shorter.append(size)
        size = capacity_bucket(size + 1)
    return (context, *reversed(shorter))


def _limits(options: LoadOptions, engines: Iterable[Engine]) -> dict[str, int]:
    """Returns the bytes that may be used of each memory: the user's limit, or what is free.

    Raises:
        InputError: if the user limits the memory of a device that is not there.
    """
    free = {HOST: available_bytes(), **{each.memory: each.available_bytes() for each in engines}}
    if options.limits.keys() - free.keys():  # limits for an unused GPU are not an error
        gpu = gpu_engine()
        free |= {} if gpu is None else {gpu.memory: gpu.available_bytes()}
    for device in options.limits:
        if device not in free:
            raise InputError(
                f"memory of {device!r} is limited, but there is only {', '.join(free)}: "
                "leave it out"
            )
    return free | options.limits
