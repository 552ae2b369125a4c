"""Compares the strategies for running a bundle on this machine's devices by measured costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgespec.bundle import DRAFT, TARGET, Bundle
from edgespec.errors import DeviceError
from edgespec.runtime.costs.contention import apart, overlap_cost
from edgespec.runtime.curve import Seconds
from edgespec.runtime.deployment.demands import MIB
from edgespec.runtime.deployment.deployment import (
    Deployment,
    RoleDeployment,
    deploy,
    place_to_use,
    with_costs,
)
from edgespec.runtime.deployment.device_names import gpu_engine
from edgespec.runtime.deployment.options import MODEL_DRAFTS, LoadOptions, default_tree
from edgespec.runtime.deployment.placement import GPU
from edgespec.runtime.deployment.resolve import LEAST_CONTEXT, loaded_draft
from edgespec.runtime.deployment.throughput import USUAL_ACCEPTANCE, Pair, plain
from edgespec.runtime.engines import common_shapes
from edgespec.runtime.execution.model import Model

ACCEPTANCES = (0.6, 0.75, 0.9)
"""Acceptance rates (shares of correct draft tokens) at which strategies are compared."""

_DEFAULTS = LoadOptions()


@dataclass(frozen=True)
class Strategy:
    """One way to run a bundle, and its expected speed.

    Attributes:
        name: plain (the target alone), offload (the target alone, with its layers placed), serial
            (a draft model, then the target) or overlap (both at once).
        deployment: the deployment that runs the bundle this way.
        engines: the chosen engines of each role, joined by `+`; empty until costs are known.
        rates: expected tokens per second for each acceptance rate; empty if it cannot run.
        slowdown: factor by which simultaneous drafting slows the target's passes; None if the
            strategy does not overlap.
        refusal: reason why it cannot run; None if it can.
    """

    name: str
    deployment: Deployment
    engines: Mapping[str, str] = field(default_factory=dict)
    rates: Mapping[float, float] = field(default_factory=dict)
    slowdown: float | None = None
    refusal: str | None = None

    @property
    def options(self) -> LoadOptions:
        """The load options that run the bundle this way."""
        return self.deployment.options


def compare(bundle: Bundle, options: LoadOptions, notice: Callable[[], None]) -> list[Strategy]:
    """Returns all strategies: with and without a draft model, on the devices that were named.

    A placement that the user gave also applies with a draft model; a proposed one does not. A draft
    model that was left on the default device is also tried on the device `gpu`.

    Args:
        bundle: the bundle to run.
        options: the user's options, with the context that every strategy must have room for.
        notice: called before anything is measured, since measuring takes long.

    Raises:
        DeviceError: if a device is not known, or no engine is installed.
        InputError: if an option does not suit the bundle.
    """
    # Measurements change which engine is planned for, so all plans come before all measurements.
    return [_weighed(way, notice) for way in list(_ways(bundle, options))]


def best(ways: Sequence[Strategy]) -> Strategy | None:
    """Returns the fastest strategy at the usual acceptance; None if none can run.

    Of equally fast ones it is the first, which is the simplest.
    """
    able = [way for way in ways if way.refusal is None]
    return max(able, key=lambda way: way.rates[USUAL_ACCEPTANCE], default=None)


def _ways(bundle: Bundle, options: LoadOptions) -> Iterator[Strategy]:
    alone = replace(options, draft="none", draft_device=_DEFAULTS.draft_device)
    yield _planned("plain", bundle, replace(alone, place=None, gpu_layers=None))
    place, target = place_to_use(bundle, alone), options
    if place is not None:
        yield _planned("offload", bundle, _placed(alone, place))
        if options.place is not None or options.gpu_layers is not None:
            target = _placed(options, place)
    if bundle.draft is None:
        return
    for device in _draft_devices(options):
        serial = _with_draft(bundle, replace(target, draft_device=device, pipeline="serial"))
        yield serial
        engines = serial.deployment.engines
        if apart(engines[TARGET], engines[DRAFT]):
            both = replace(serial.deployment, options=replace(serial.options, pipeline="overlap"))
            yield Strategy("overlap", both)


def _placed(options: LoadOptions, place: str) -> LoadOptions:
    return replace(options, place=place, gpu_layers=None, device=_DEFAULTS.device)


def _draft_devices(options: LoadOptions) -> tuple[str, ...]:
    device = options.draft_device
    return (device, GPU) if device == _DEFAULTS.draft_device and gpu_engine() else (device,)


def _with_draft(bundle: Bundle, options: LoadOptions) -> Strategy:
    """Returns serial decoding by all draft sources.

    If memory has no room for the draft model then, it is serial decoding by the draft model alone.
    """
    weighed = _planned("serial", bundle, replace(options, draft="auto"))
    if weighed.deployment.draft in MODEL_DRAFTS:
        return weighed
    return _planned("serial", bundle, replace(options, draft=loaded_draft(bundle)))


def _planned(name: str, bundle: Bundle, options: LoadOptions) -> Strategy:
    return Strategy(name, deploy(bundle, options))


def _weighed(way: Strategy, notice: Callable[[], None]) -> Strategy:
    """Returns the strategy with its expected speed, or with the reason why it cannot run."""
    if not way.deployment.fits:
        return replace(way, refusal=_lacking(way.deployment))
    try:
        if not way.deployment.known:
            notice()
        found = with_costs(way.deployment, always=True)
        rates, slowdown = _rates(found, notice)
    except DeviceError as error:
        return replace(way, refusal=str(error))
    engines = {name: role.device for name, role in found.roles.items()}
    return replace(way, deployment=found, engines=engines, rates=rates, slowdown=slowdown)


def _lacking(plan: Deployment) -> str:
    short = [
        f"{demand.total / MIB:,.0f} MiB on {demand.device} where {demand.limit / MIB:,.0f} may be "
        "used"
        for demand in plan.devices
        if demand.total > demand.limit
    ]
    return f"needs {' and '.join(short)}, with a context of {plan.context:,}"


def _rates(
    found: Deployment, notice: Callable[[], None]
) -> tuple[dict[float, float], float | None]:
    """Returns tokens per second by acceptance, and the slowdown if the strategy overlaps."""
    roles, options = found.roles, found.options
    verify = _seconds(roles[TARGET])
    if DRAFT not in roles:
        return dict.fromkeys(ACCEPTANCES, plain(verify)), None
    longest = min(default_tree(options.draft), found.max_tree)
    pair = Pair(verify, _seconds(roles[DRAFT])(1), longest)
    if options.pipeline == "serial":
        return {share: pair.serial(share) for share in ACCEPTANCES}, None
    threads = roles[TARGET].asked.threads

    def models() -> tuple[Model, Model]:
        notice()
        target, draft = (
            Model.load(found.bundle, name, roles[name].engines, threads) for name in (TARGET, DRAFT)
        )
        return target, draft

    engines = (*roles[TARGET].engines, *roles[DRAFT].engines)
    slowdown = overlap_cost(found.bundle, engines, threads, models).slowdown
    return {share: pair.overlap(share, slowdown) for share in ACCEPTANCES}, slowdown


def _seconds(role: RoleDeployment) -> Seconds:
    """Returns a function from rows of a call to its seconds, in a short text."""
    profile = role.candidates[0].profile
    assert profile is not None, "costs were not asked for"
    curve = profile.curve(common_shapes(role.engines))
    return lambda rows: curve.seconds(rows, LEAST_CONTEXT)
