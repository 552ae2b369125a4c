"""Ways to run a bundle on the devices that there are, compared by what calls cost on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgespec.bundle import DRAFT, TARGET, Bundle
from edgespec.errors import DeviceError
from edgespec.runtime.costs.contention import apart, paired
from edgespec.runtime.curve import Seconds
from edgespec.runtime.deployment.fitting import as_planned, fitted, gpu_of, place_to_use, placements
from edgespec.runtime.deployment.memory import LEAST_CONTEXT
from edgespec.runtime.deployment.options import LoadOptions, default_tree
from edgespec.runtime.deployment.placement import GPU
from edgespec.runtime.deployment.plans import MIB, Plan
from edgespec.runtime.deployment.selection import Candidate, Placement, all_known, choose
from edgespec.runtime.deployment.throughput import Pair, plain
from edgespec.runtime.engines import common_shapes
from edgespec.runtime.execution.model import Model

ACCEPTANCES = (0.6, 0.75, 0.9)
"""Shares of the draft model's best guesses that are right: by these ways are compared."""

USUAL_ACCEPTANCE = 0.75
"""By which the best way is named."""

_DEFAULTS = LoadOptions()


@dataclass(frozen=True)
class Way:
    """One way to run a bundle, and what it promises.

    Attributes:
        name: plain (the target alone), offload (the same, its layers placed), serial (a draft
            model, then the target) or overlap (both at once).
        options: that run the bundle so.
        plan: what memory it takes.
        places: where its roles go.
        engines: those chosen, of each role, joined by `+`; none before anything is known.
        rates: expected tokens per second by acceptance; none if it cannot be run.
        slowdown: of the target's passes beside drafts; None where there are none beside them.
        refusal: why it cannot be run, if it cannot.
    """

    name: str
    options: LoadOptions
    plan: Plan
    places: Mapping[str, Placement]
    engines: Mapping[str, str] = field(default_factory=dict)
    rates: Mapping[float, float] = field(default_factory=dict)
    slowdown: float | None = None
    refusal: str | None = None


def compare(bundle: Bundle, options: LoadOptions, notice: Callable[[], None]) -> list[Way]:
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
    return [_weighed(bundle, way, notice) for way in list(_ways(bundle, options))]


def best(ways: Sequence[Way]) -> Way | None:
    """The way that promises most at the usual acceptance, the simplest of equals; None: of none."""
    able = [way for way in ways if way.refusal is None]
    return max(able, key=lambda way: way.rates[USUAL_ACCEPTANCE], default=None)


def _ways(bundle: Bundle, options: LoadOptions) -> Iterator[Way]:
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
        if apart(serial.plan.engines[TARGET], serial.plan.engines[DRAFT]):
            yield replace(
                serial, name="overlap", options=replace(serial.options, pipeline="overlap")
            )


def _placed(options: LoadOptions, place: str) -> LoadOptions:
    return replace(options, place=place, gpu_layers=None, device=_DEFAULTS.device)


def _draft_devices(options: LoadOptions) -> tuple[str, ...]:
    device = options.draft_device
    return (device, GPU) if device == _DEFAULTS.draft_device and gpu_of(options) else (device,)


def _with_draft(bundle: Bundle, options: LoadOptions) -> Way:
    """Serial decoding by all sources, or by the draft model alone where it would give way else."""
    weighed = _planned("serial", bundle, replace(options, draft="auto"))
    if weighed.plan.draft == "model":
        return weighed
    return _planned("serial", bundle, replace(options, draft="model"))


def _planned(name: str, bundle: Bundle, options: LoadOptions) -> Way:
    plan = fitted(as_planned(bundle, options), options)
    return Way(name, options, plan, placements(bundle, options, plan))


def _weighed(bundle: Bundle, way: Way, notice: Callable[[], None]) -> Way:
    """A way with what it promises, or why it cannot be run."""
    if not way.plan.fits:
        return replace(way, refusal=_lacking(way.plan))
    try:
        if not all_known(bundle, way.places):
            notice()
        choices = choose(bundle, way.places, costs=True)
        found = {role: candidates[0] for role, candidates in choices.items()}
        rates, slowdown = _rates(bundle, way, found, notice)
    except DeviceError as error:
        return replace(way, refusal=str(error))
    engines = {role: candidate.device for role, candidate in found.items()}
    return replace(way, engines=engines, rates=rates, slowdown=slowdown)


def _lacking(plan: Plan) -> str:
    short = [
        f"{demand.total / MIB:,.0f} MiB on {demand.device} where {demand.limit / MIB:,.0f} may be "
        "used"
        for demand in plan.devices
        if demand.total > demand.limit
    ]
    return f"needs {' and '.join(short)}, with a context of {plan.context:,}"


def _rates(
    bundle: Bundle, way: Way, found: Mapping[str, Candidate], notice: Callable[[], None]
) -> tuple[dict[float, float], float | None]:
    """Tokens per second by acceptance, and the slowdown that an overlap was weighed with."""
    verify = _seconds(found[TARGET])
    if DRAFT not in found:
        return dict.fromkeys(ACCEPTANCES, plain(verify)), None
    longest = min(default_tree(way.options.draft), way.plan.max_tree)
    pair = Pair(verify, _seconds(found[DRAFT])(1), longest)
    if way.options.pipeline == "serial":
        return {share: pair.serial(share) for share in ACCEPTANCES}, None
    threads = way.places[TARGET].threads

    def models() -> tuple[Model, Model]:
        notice()
        target, draft = (
            Model.load(bundle, role, found[role].engines, threads) for role in (TARGET, DRAFT)
        )
        return target, draft

    engines = (*found[TARGET].engines, *found[DRAFT].engines)
    slowdown = paired(bundle, engines, threads, models).slowdown
    return {share: pair.overlap(share, slowdown) for share in ACCEPTANCES}, slowdown


def _seconds(candidate: Candidate) -> Seconds:
    """What a call costs in a short text, by its rows."""
    assert candidate.profile is not None, "costs were not asked for"
    curve = candidate.profile.curve(common_shapes(candidate.engines))
    return lambda rows: curve.seconds(rows, LEAST_CONTEXT)
