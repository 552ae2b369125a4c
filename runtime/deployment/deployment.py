"""One answer to what runs where: resolve the options, size and fit, choose by measured costs.

`deploy` is arithmetic over the manifest and what was measured before; it loads and measures
nothing. `with_costs` measures what is not known where there is a choice. `load` compiles.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from edgespec.bundle import TARGET, Bundle
from edgespec.errors import DeviceError, MemoryLimitError
from edgespec.runtime.costs.profiles import Profile
from edgespec.runtime.curve import Curve
from edgespec.runtime.deployment.demands import HOST, MIB, Demand, FixedShape
from edgespec.runtime.deployment.fixed_shapes import is_open
from edgespec.runtime.deployment.memory import USUAL_CONTEXT, Fit, RoleFit, fit
from edgespec.runtime.deployment.options import LoadOptions
from edgespec.runtime.deployment.placement import borders, describe, on_gpu
from edgespec.runtime.deployment.resolve import (
    Request,
    as_planned,
    context_length,
    described,
    gpu_of,
    layer_devices,
    resolve,
)
from edgespec.runtime.deployment.selection import (
    Candidate,
    RoleRequest,
    known_costs,
    measured_costs,
    names_of,
    ranked,
    refused,
    round_ms,
)
from edgespec.runtime.engines import Engines, is_experimental
from edgespec.runtime.execution import exactness
from edgespec.runtime.execution.model import Model, TextSizes
from edgespec.runtime.execution.stage_files import multiplies, require_suited

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoleDeployment:
    """Where a role runs.

    Attributes:
        candidates: engines for its stages, the first to be used; the others where it fails to load.
        asked: what was wanted of it.
        cache_rows: that its cache grows to at most.
        why: the reason for the first candidate, for people.
    """

    candidates: tuple[Candidate, ...]
    asked: RoleRequest
    cache_rows: int
    why: str

    @property
    def engines(self) -> Engines:
        """One for each stage."""
        return self.candidates[0].engines

    @property
    def device(self) -> str:
        """The engines' names, joined by `+`."""
        return self.candidates[0].device


@dataclass(frozen=True)
class Deployment:
    """What runs where, for which texts, and what memory it takes.

    Attributes:
        bundle: what is to run.
        options: the user's.
        name: the bundle, and the machine that is simulated, as people are told.
        fits: whether `devices` stay within their limits; if not, this is the least that can be.
        context: tokens of prompt and output.
        draft: the draft source that memory has room for.
        max_tree: nodes of a draft tree at most.
        prefill_chunk: rows of a call that reads a prompt.
        roles: those that are loaded.
        devices: what the memory of each has to hold.
        shapes: what NPUs are compiled for, smallest first.
        warnings: a line for all that was wanted and had no room, and one for each device that is
            experimental.
    """

    bundle: Bundle
    options: LoadOptions
    name: str
    fits: bool
    context: int
    draft: str
    max_tree: int
    prefill_chunk: int
    roles: Mapping[str, RoleDeployment]
    devices: tuple[Demand, ...]
    shapes: tuple[FixedShape, ...]
    warnings: tuple[str, ...]

    @property
    def engines(self) -> dict[str, tuple[str, ...]]:
        """Of each role, the names of its stages' engines."""
        return {name: names_of(role.engines) for name, role in self.roles.items()}

    @cached_property
    def exact(self) -> bool | None:
        """Whether a row is the same bits in all company; None: that was not tried here yet."""
        role = self.roles[TARGET]
        if not self.bundle.target.ordered:
            return False
        found = exactness.recall(self.bundle, TARGET, role.engines, role.asked.threads)
        return None if found is None else found.exact

    @property
    def known(self) -> bool:
        """Whether what calls cost was measured before, of all candidates."""
        return all(
            None not in known_costs(self.bundle, name, _among(role))
            for name, role in self.roles.items()
        )

    def require_fit(self) -> None:
        """Refuse what does not fit.

        Raises:
            MemoryLimitError: with the numbers of the first device that is too small.
        """
        for demand in self.devices:
            if demand.total > demand.limit:
                smaller = ", --draft lookup" if self.draft == "model" else ""
                terms = ", ".join(f"{n} {size / MIB:.0f}" for n, size in demand.terms.items())
                raise MemoryLimitError(
                    f"{self.name} needs {demand.total / MIB:.0f} MiB on {demand.device} and "
                    f"{demand.limit / MIB:.0f} may be used ({terms}; context {self.context}, "
                    f"draft {self.draft}): raise --memory, or ask for a shorter --context"
                    f"{smaller} or a bundle of lower precision"
                )


@dataclass(frozen=True)
class Loaded:
    """A role, ready to run, and what its calls cost.

    Attributes:
        model: the compiled role.
        engines: that run it.
        threads: for each engine's operators.
        profile: of its engines; None where nobody asked.
    """

    model: Model
    engines: Engines
    threads: int
    profile: Profile | None

    @cached_property
    def curve(self) -> Curve:
        """Seconds of a call by rows and capacity; texts of this model share what they observe."""
        assert self.profile is not None, "costs were not asked for"
        return self.profile.curve(self.model.shapes)


def deploy(bundle: Bundle, options: LoadOptions) -> Deployment:
    """The deployment of a bundle under a limit of the user's, or what memory is free.

    What the user asked for by name never gives way: only a draft model or context of our choice
    does, and only the device `cpu` leaves the engine open. What does not fit is told by
    `Deployment.fits`.

    Raises:
        DeviceError: if a device is not known, no engine is installed, or it takes no such weights.
        InputError: if an option does not suit the bundle.
    """
    request = resolve(bundle, options)
    found = fit(request)
    for name in found.roles:
        for each in request.roles[name].choices[0]:  # another choice would be no better
            require_suited(request.bundle, name, each)
    return Deployment(
        bundle=bundle,
        options=options,
        name=described(bundle, options),
        fits=found.fits,
        context=found.context,
        draft=found.draft,
        max_tree=found.max_tree,
        prefill_chunk=found.prefill_chunk,
        roles={
            name: _role(bundle, name, each, request.roles[name])
            for name, each in found.roles.items()
        },
        devices=found.devices,
        shapes=found.shapes,
        warnings=(
            *_missing(found, request, context_length(options.context, bundle)),
            *_experimental(found),
        ),
    )


def with_costs(deployment: Deployment, always: bool = False) -> Deployment:
    """The same with what calls cost, the cheapest candidates of each role first.

    What has not been measured on this machine is measured in processes of their own; where there
    is no choice only if it is `always` wanted.

    Raises:
        DeviceError: if no engine takes a role.
    """
    asked = {
        name: _among(role)
        for name, role in deployment.roles.items()
        if always or len(role.candidates) > 1
    }
    found = measured_costs(deployment.bundle, asked) if asked else {}
    roles = dict(deployment.roles)
    for name, request in asked.items():
        best = ranked(name, request, found[name])
        roles[name] = replace(roles[name], candidates=best, why=_by_cost(request, best))
    return replace(deployment, roles=roles)


def load(deployment: Deployment) -> dict[str, Loaded]:
    """Compile the roles of a deployment.

    Raises:
        BundleError: if a role's stages are of a later kind.
        DeviceError: if no candidate takes a role.
    """
    loaded = {}
    for name, role in deployment.roles.items():
        loaded[name] = _load(deployment.bundle, name, role)
        loaded[name].model.sizes = TextSizes(deployment.prefill_chunk, role.cache_rows)
    return loaded


def target_choices(bundle: Bundle, options: LoadOptions) -> list[Engines]:
    """What may run the target's stages: every choice that its devices leave open, shapes chosen.

    Raises:
        DeviceError: if a device is not known, or no engine for it is installed.
        InputError: if the placement does not suit the bundle.
    """
    request = resolve(bundle, replace(options, draft="none"))
    choices = request.roles[TARGET].choices
    if any(map(is_open, choices[0])):
        found = fit(request).roles[TARGET]
        choices = (found.engines, *found.others)
    return sorted(choices, key=names_of)


def place_to_use(bundle: Bundle, options: LoadOptions) -> str | None:
    """Where layers are to run: as the user says, or with what fits of the last ones on the GPU.

    Returns:
        `LoadOptions.place`; None where the user named a device, or where there is no GPU with
        memory of its own, or none that runs the target's weights and has room for the layers behind
        the bundle's last border.
    """
    planned = as_planned(bundle, options)
    devices, layers = layer_devices(planned, options), planned.target.layers
    if devices is not None:
        return describe(devices)
    gpu = None if options.device != LoadOptions.device else gpu_of(options)
    if gpu is None or gpu.memory == HOST or not multiplies(gpu, planned.target.precision):
        return None
    for first in (0, *borders(planned.target)):
        place = describe(on_gpu(layers - first, layers, options.device))
        if fit(resolve(bundle, replace(options, place=place))).fits:
            return place
    return None


def _role(bundle: Bundle, name: str, found: RoleFit, asked: RoleRequest) -> RoleDeployment:
    candidates = tuple(map(Candidate, (found.engines, *found.others)))
    role = RoleDeployment(candidates, asked, found.cache_rows, "as asked")
    if len(candidates) > 1:
        costs = known_costs(bundle, name, _among(role))
        if None in costs:
            return replace(role, why="the largest; which is faster is measured at the first load")
        priced = map(Candidate, (each.engines for each in candidates), costs)
        return replace(role, why=_by_cost(asked, tuple(priced)))
    if len(asked.choices) > 1:
        return replace(role, why="the one that memory has room for")
    return role


def _among(role: RoleDeployment) -> RoleRequest:
    """What was asked, of the candidates that are left."""
    return replace(role.asked, choices=tuple(each.engines for each in role.candidates))


def _by_cost(asked: RoleRequest, best: tuple[Candidate, ...]) -> str:
    able = (each for each in best if each.profile is not None and each.profile.refusal is None)
    return ", ".join(f"{each.device} {round_ms(asked, each):.1f} ms a round" for each in able)


def _experimental(found: Fit) -> Iterator[str]:
    """Warns of each device that has never been run on real hardware."""
    names = (name for role in found.roles.values() for name in names_of(role.engines))
    for name in dict.fromkeys(filter(is_experimental, names)):
        yield f"{name} is experimental: it was never run on real hardware, see docs/devices.md"


def _missing(found: Fit, request: Request, wished: int) -> Iterator[str]:
    """What was wanted and had no room."""
    context = request.contexts[0]
    if context < wished:
        yield f"a context of {context} tokens, for the fixed shapes of the device"
    changes = []
    if found.draft != request.drafts[0]:
        changes.append(f"draft {found.draft} instead of {request.drafts[0]}")
    if found.context < min(context, USUAL_CONTEXT):  # few texts would miss more
        changes.append(f"a context of {found.context} instead of {context} tokens")
    if found.fits and changes:
        limits = ", ".join(f"{d.limit >> 20} MiB on {d.device}" for d in found.devices)
        yield f"{' and '.join(changes)}, to fit {limits}"


def _load(bundle: Bundle, name: str, role: RoleDeployment) -> Loaded:
    """The first candidate that compiles; a library may have been damaged since it was measured."""
    refusals = []
    threads = role.asked.threads
    for candidate in role.candidates:
        try:
            model = exactness.load(bundle, name, candidate.engines, threads)
        except DeviceError as error:
            if len(role.candidates) == 1:
                raise
            _log.warning("%s", error)
            refusals.append(str(error))
            continue
        return Loaded(model, candidate.engines, threads, candidate.profile)
    raise refused(name, refusals)
