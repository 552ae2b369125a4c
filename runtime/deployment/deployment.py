"""Decides which engine runs each role, and with which shapes, context and memory.

`deploy` computes this from the manifest and from earlier measurements; it loads and measures
nothing. `with_costs` measures costs that are not known, if there is a choice. `load` compiles.
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
from edgespec.runtime.deployment.device_names import gpu_engine
from edgespec.runtime.deployment.fixed_shapes import is_open
from edgespec.runtime.deployment.memory import USUAL_CONTEXT, Fit, RoleFit, fit
from edgespec.runtime.deployment.options import MODEL_DRAFTS, LoadOptions
from edgespec.runtime.deployment.placement import borders, describe, on_gpu
from edgespec.runtime.deployment.resolve import (
    Request,
    context_length,
    layer_devices,
    resolve,
    suited_to,
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
from edgespec.runtime.engines import Engines, is_experimental, is_gpu
from edgespec.runtime.execution import exactness
from edgespec.runtime.execution.model import Model, TextSizes
from edgespec.runtime.execution.stage_files import require_suited, takes_texts

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoleDeployment:
    """The engines that run a role.

    Attributes:
        candidates: choices of engines for its stages; the first is used, the others only if those
            before them fail to load.
        asked: the request that this answers.
        cache_rows: number of rows that its cache can grow to.
        why: reason for the first candidate, shown to users.
    """

    candidates: tuple[Candidate, ...]
    asked: RoleRequest
    cache_rows: int
    why: str

    @property
    def engines(self) -> Engines:
        """The engines in use, one for each stage."""
        return self.candidates[0].engines

    @property
    def device(self) -> str:
        """The engines' names, joined by `+`."""
        return self.candidates[0].device


@dataclass(frozen=True)
class Deployment:
    """The engines, limits and memory of a bundle.

    Attributes:
        bundle: the bundle to run.
        options: the user's options, as they are for this bundle.
        fits: whether all `devices` stay within their limits; if not, this is the deployment that
            needs least memory.
        context: maximum number of tokens of prompt and output together.
        draft: the draft source that memory has room for.
        max_tree: maximum number of nodes of a draft tree.
        prefill_chunk: rows of a call that reads a prompt.
        roles: the roles that are loaded, by name.
        devices: memory demand of each device.
        shapes: shapes that NPUs are compiled for, smallest first.
        warnings: one line for each wish that memory or fixed shapes had no room for, and one for
            each device that is experimental.
    """

    bundle: Bundle
    options: LoadOptions
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
        """The names of each role's engines, one for each stage."""
        return {name: names_of(role.engines) for name, role in self.roles.items()}

    @cached_property
    def exact(self) -> bool | None:
        """Whether a row's result has the same bits in every call; None: not tested here yet."""
        role = self.roles[TARGET]
        if not self.bundle.target.ordered:
            return False
        found = exactness.recall(self.bundle, TARGET, role.engines, role.asked.threads)
        return None if found is None else found.exact

    @property
    def known(self) -> bool:
        """Whether the costs of all candidates were measured before."""
        return all(
            None not in known_costs(self.bundle, name, _among(role))
            for name, role in self.roles.items()
        )

    def require_fit(self) -> None:
        """Raises an error if the deployment does not fit into memory.

        Raises:
            MemoryLimitError: the memory of a device is too small; tells the numbers of the first.
        """
        for demand in self.devices:
            if demand.total > demand.limit:
                smaller = ", --draft lookup" if self.draft in MODEL_DRAFTS else ""
                terms = ", ".join(f"{n} {size / MIB:.0f}" for n, size in demand.terms.items())
                raise MemoryLimitError(
                    f"{self.bundle.path} needs {demand.total / MIB:.0f} MiB on {demand.device} and "
                    f"{demand.limit / MIB:.0f} may be used ({terms}; context {self.context}, "
                    f"draft {self.draft}): raise --memory, or ask for a shorter --context"
                    f"{smaller} or a bundle of lower precision"
                )


@dataclass(frozen=True)
class Loaded:
    """A compiled role and the costs of its calls.

    Attributes:
        model: the compiled role.
        engines: the engines that run it, one for each stage.
        threads: number of threads per engine.
        profile: measured costs on these engines; None if they were not needed.
    """

    model: Model
    engines: Engines
    threads: int
    profile: Profile | None

    @cached_property
    def curve(self) -> Curve:
        """Seconds of a call by rows and capacity; all texts of this model update and share it."""
        assert self.profile is not None, "costs were not asked for"
        return self.profile.curve(self.model.shapes)


def deploy(bundle: Bundle, options: LoadOptions) -> Deployment:
    """Plans a bundle for the user's memory limit, or for the free memory.

    What the user asked for explicitly is never reduced. Only a default draft model or context is,
    and only the device `cpu` leaves the engine open. `Deployment.fits` tells whether it fits.

    Raises:
        DeviceError: if a device is not known, no engine for it is installed, or an engine does not
            support the weights.
        InputError: if an option does not suit the bundle.
    """
    options = suited_to(bundle, options)
    request = resolve(bundle, options)
    found = fit(request)
    for name in found.roles:
        for each in request.roles[name].choices[0]:  # another choice would be no better
            require_suited(request.bundle, name, each)
    return Deployment(
        bundle=bundle,
        options=options,
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


def texts_with_room(bundle: Bundle, options: LoadOptions, most: int) -> int:
    """Returns the number of texts to make at once where the user did not say.

    It is 1 where texts cannot share passes. Else there is memory for as many texts of full length,
    without giving up anything that one text has.

    Args:
        bundle: the bundle.
        options: the user's options; those for one text are kept as they are.
        most: largest number to return; tried are this, its half, and so on.

    Raises:
        DeviceError: as `deploy`.
        InputError: as `deploy`.
    """
    found = deploy(bundle, replace(options, sessions=1))
    engines = found.roles[TARGET].engines
    if not (bundle.target.stages_of_texts and all(map(takes_texts, engines))):
        return 1
    alone = _terms(found)
    while most > 1 and _terms(deploy(bundle, replace(options, sessions=most))) != alone:
        most //= 2
    return most


def _terms(found: Deployment) -> tuple[object, ...]:
    """Returns what a deployment may give up for want of memory."""
    sizes = (found.context, found.draft, found.max_tree, found.prefill_chunk)
    return found.fits, sizes, found.engines


def with_costs(deployment: Deployment, always: bool = False) -> Deployment:
    """Adds measured costs to a deployment, and sorts each role's candidates by them.

    Costs that are not known on this machine are measured now, in separate processes.

    Args:
        deployment: the deployment.
        always: also measure roles that have a single candidate.

    Raises:
        DeviceError: if no engine accepts a role.
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
    """Compiles the roles of a deployment.

    Raises:
        BundleError: if a role's stages need a newer version of this package.
        DeviceError: if no candidate accepts a role.
    """
    loaded = {}
    for name, role in deployment.roles.items():
        texts = deployment.options.sessions
        loaded[name] = _load(deployment.bundle, name, role, texts > 1)
        loaded[name].model.sizes = TextSizes(deployment.prefill_chunk, role.cache_rows, texts)
    return loaded


def target_choices(bundle: Bundle, options: LoadOptions) -> list[Engines]:
    """Returns every choice of engines for the target's stages, with NPU shapes chosen.

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
    """Returns where layers run: as the user says, or as many last layers on the GPU as fit.

    Returns:
        A value for `LoadOptions.place`. None if the user named a device, or if no GPU has its own
        memory and has room for the layers after the bundle's last
        border.
    """
    devices, layers = layer_devices(bundle, options), bundle.target.layers
    if devices is not None:
        return describe(devices)
    gpu = None if options.device != LoadOptions.device else gpu_engine()
    if gpu is None or gpu.memory == HOST:
        return None
    for first in (0, *borders(bundle.target)):
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
            return replace(
                role, why="it needs most memory; which is faster is measured at the first load"
            )
        priced = map(Candidate, (each.engines for each in candidates), costs)
        return replace(role, why=_by_cost(asked, tuple(priced)))
    if len(asked.choices) > 1:
        return replace(role, why="the only one that memory has room for")
    return role


def _among(role: RoleDeployment) -> RoleRequest:
    """Returns the request, restricted to the remaining candidates."""
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
    """Yields a line for each wish that could not be fulfilled."""
    context = request.contexts[0]
    if context < wished:
        yield f"a context of {context} tokens, since the device has fixed shapes"
    changes = []
    if found.draft != request.drafts[0]:
        changes.append(f"draft {found.draft} instead of {request.drafts[0]}")
    if found.context < min(context, USUAL_CONTEXT):  # few texts would miss more
        changes.append(f"a context of {found.context} instead of {context} tokens")
    if found.fits and changes:
        limits = ", ".join(f"{d.limit >> 20} MiB on {d.device}" for d in found.devices)
        yield f"{' and '.join(changes)}, to fit {limits}"


def _load(bundle: Bundle, name: str, role: RoleDeployment, several: bool) -> Loaded:
    """Compiles the first candidate that can be compiled.

    The first one may fail although it was measured, if its library was damaged since.

    Args:
        bundle: the bundle.
        name: name of the role.
        role: what runs it.
        several: whether more than one text at once was asked for.
    """
    refusals = []
    threads = role.asked.threads
    for candidate in role.candidates:
        # The graph for several texts has some operators more. They slow one text down where calls
        # are as short as those of a small draft model, or each operator is started on its own.
        quick = name == TARGET and not any(is_gpu(each.name) for each in candidate.engines)
        texts = several or quick
        try:
            model = exactness.load(bundle, name, candidate.engines, threads, texts=texts)
        except DeviceError as error:
            if len(role.candidates) == 1:
                raise
            _log.warning("%s", error)
            refusals.append(str(error))
            continue
        return Loaded(model, candidate.engines, threads, candidate.profile)
    raise refused(name, refusals)
