"""Ways to run a bundle on the devices that there are, compared by what calls cost on them."""

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
from edgespec.runtime.deployment.options import LoadOptions, default_tree
from edgespec.runtime.deployment.placement import GPU
from edgespec.runtime.deployment.resolve import LEAST_CONTEXT, gpu_of
from edgespec.runtime.deployment.throughput import Pair, plain
from edgespec.runtime.engines import common_shapes
from edgespec.runtime.execution.model import Model

ACCEPTANCES = (0.6, 0.75, 0.9)
"""Shares of the draft model's best guesses that are right: by these ways are compared."""

USUAL_ACCEPTANCE = 0.75
"""By which the best way is named."""

_DEFAULTS = LoadOptions()


@dataclass(frozen=True)
class Strategy:
    """One way to run a bundle, and what it promises.

    Attributes:
        name: plain (the target alone), offload (the same, its layers placed), serial (a draft
            model, then the target) or overlap (both at once).
        deployment: that runs the bundle so.
        engines: those chosen, of each role, joined by `+`; none before anything is known.
        rates: expected tokens per second by acceptance; none if it cannot be run.
        slowdown: of the target's passes beside drafts; None where there are none beside them.
        refusal: why it cannot be run, if it cannot.
    """

    name: str
    deployment: Deployment
    engines: Mapping[str, str] = field(default_factory=dict)
    rates: Mapping[float, float] = field(default_factory=dict)
    slowdown: float | None = None
    refusal: str | None = None

    @property
    def options(self) -> LoadOptions:
        """That run the bundle so."""
        return self.deployment.options


def compare(bundle: Bundle, options: LoadOptions, notice: Callable[[], None]) -> list[Strategy]:
    """All ways that there are: with and without a draft model, on the devices that were named.

    A placement of the user's holds beside a draft model, too; one that is proposed does not. A
    draft model that was left on the default device is tried on the device `gpu`, too.

    Args:
        bundle: to run.
        options: the user's, with the context that all ways are to have room for.
        notice: is called before anything is measured, which takes long.

    Raises:
        DeviceError: if a device is not known, or no engine is installed.
        InputError: if an option does not suit the bundle.
    """
    # What is measured changes which engine is planned for: first all plans, then all costs.
    return [_weighed(way, notice) for way in list(_ways(bundle, options))]


def best(ways: Sequence[Strategy]) -> Strategy | None:
    """The way that promises most at the usual acceptance, the simplest of equals; None: of none."""
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
    return (device, GPU) if device == _DEFAULTS.draft_device and gpu_of(options) else (device,)


def _with_draft(bundle: Bundle, options: LoadOptions) -> Strategy:
    """Serial decoding by all sources, or by the draft model alone where it would give way else."""
    weighed = _planned("serial", bundle, replace(options, draft="auto"))
    if weighed.deployment.draft == "model":
        return weighed
    return _planned("serial", bundle, replace(options, draft="model"))


def _planned(name: str, bundle: Bundle, options: LoadOptions) -> Strategy:
    return Strategy(name, deploy(bundle, options))


def _weighed(way: Strategy, notice: Callable[[], None]) -> Strategy:
    """A way with what it promises, or why it cannot be run."""
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
    """Tokens per second by acceptance, and the slowdown that an overlap was weighed with."""
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
    """What a call costs in a short text, by its rows."""
    profile = role.candidates[0].profile
    assert profile is not None, "costs were not asked for"
    curve = profile.curve(common_shapes(role.engines))
    return lambda rows: curve.seconds(rows, LEAST_CONTEXT)
