"""Which engines run a role: those asked for or, for `cpu`, the cheaper one by measurement.

What is compared is a usual text, its prompt included: an engine that is a little faster at single
rows may take twice as long to read a prompt. Where the calls of texts took other times than were
measured, by more than engines are apart, all are measured once more.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from edgespec.bundle import Bundle, Role
from edgespec.errors import DeviceError
from edgespec.runtime.costs import profiles
from edgespec.runtime.costs.isolated import Job, measure_apart
from edgespec.runtime.costs.profiles import PARTS, Profile
from edgespec.runtime.curve import Curve
from edgespec.runtime.deployment.device_names import engines_of, resolved
from edgespec.runtime.engines import Engines, common_shapes, joined
from edgespec.runtime.execution import exactness
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.stage_files import suited
from edgespec.runtime.shapes import ROW_BUCKETS, capacity_bucket

_log = logging.getLogger(__name__)

Names = tuple[str, ...]

# Engines are compared by a usual text: rounds for each full call that reads its prompt, as in 128
# rounds behind a prompt of 512 tokens.
_ROUNDS_A_CHUNK = 32

# Calls of texts that may have engines measured again; each time that was done it takes more of
# them, since it may be that what slows texts down does not show in measuring.
_CALLS, _MORE_CALLS, _LONGEST = 64, 4, 8

_LARGE = 64 << 20  # bytes of roles whose measuring takes so long that users are told


@dataclass(frozen=True)
class Placement:
    """Where a role runs and what it will do there.

    Attributes:
        device: `cpu`, `gpu` or an engine's full name: for all stages, or one for each.
        threads: for each engine's operators.
        rounds: usual ones of decoding, each by the rows of the calls that it makes of this role;
            by them, and by what reading a prompt costs, engines are compared.
    """

    device: str | tuple[str, ...]
    threads: int
    rounds: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Candidate:
    """Engines for a role; None for the profile: what its calls cost was not asked."""

    engines: Engines
    profile: Profile | None

    @property
    def device(self) -> str:
        """The engines' names, joined by `+`."""
        return joined(_names(self.engines))


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
        assert self.profile is not None, "load_models was not asked for costs"
        return self.profile.curve(self.model.shapes)


def load_models(
    bundle: Bundle, placements: Mapping[str, Placement], costs: bool = False
) -> dict[str, Loaded]:
    """Compile roles where `placements` say, after all choices between engines are made.

    Args:
        bundle: where the roles are.
        placements: of each role to load.
        costs: whether what calls cost must be known where there is no choice, too.

    Raises:
        BundleError: if a role's stages are of a later kind.
        DeviceError: if a device is not known, or no engine takes a role.
    """
    choices = choose(bundle, placements, costs)
    return {
        role: _load(bundle, role, placement.threads, choices[role])
        for role, placement in placements.items()
    }


def choose(
    bundle: Bundle, placements: Mapping[str, Placement], costs: bool = False
) -> dict[str, tuple[Candidate, ...]]:
    """The engines that take each role, the cheapest for a text first; compiles nothing here.

    What has not been measured on this machine is measured in processes of their own; where there
    is no choice only for its `costs`.

    Raises:
        DeviceError: if a device is not known, or no engine takes a role.
    """
    roles = bundle.manifest.roles
    engines = {role: engines_for(roles[role], at) for role, at in placements.items()}
    asked = {role: at for role, at in placements.items() if costs or len(engines[role]) > 1}
    found = _profiles(bundle, asked, engines)
    return {
        role: _ranked(role, placement, found[role])
        if role in asked
        else tuple(Candidate(only, None) for only in engines[role])
        for role, placement in placements.items()
    }


def all_known(bundle: Bundle, placements: Mapping[str, Placement]) -> bool:
    """Whether all that `choose` asks for costs has been measured before.

    Raises:
        DeviceError: if a device is not known, or no engine takes a role.
    """
    return all(
        None not in _recalled(bundle, role, at, engines_for(bundle.manifest.roles[role], at))
        for role, at in placements.items()
    )


def known_order(bundle: Bundle, role: str, placement: Placement) -> tuple[Engines, ...]:
    """The engines of a role, the cheapest first; none while they have not all been measured.

    Raises:
        DeviceError: if the device is not known, or no engine takes the role.
    """
    engines = engines_for(bundle.manifest.roles[role], placement)
    if len(engines) == 1:
        return tuple(engines)
    found = _recalled(bundle, role, placement, engines)
    if None in found:
        return ()
    candidates = list(map(Candidate, engines, found))
    return tuple(candidate.engines for candidate in _ranked(role, placement, candidates))


def engines_for(role: Role, placement: Placement) -> list[Engines]:
    """What may run a role's stages: a device has the same engine wherever it is named.

    Raises:
        DeviceError: if a device is not known, or no engine for it is installed.
    """
    at = placement.device
    wanted = (at,) * len(role.stages) if isinstance(at, str) else at
    names = tuple(map(resolved, wanted))
    behind = {name: suited(role, engines_of(name)) for name in dict.fromkeys(names)}
    choices = (dict(zip(behind, picked, strict=True)) for picked in product(*behind.values()))
    return [tuple(choice[name] for name in names) for choice in choices]


def _profiles(
    bundle: Bundle, placements: Mapping[str, Placement], engines: Mapping[str, Sequence[Engines]]
) -> dict[str, list[Candidate]]:
    """A profile of each role on each choice of its engines: recalled, or measured now."""
    found: dict[tuple[str, Names], Profile] = {}
    unknown: defaultdict[tuple[Names, int], dict[str, Engines]] = defaultdict(dict)
    for role, placement in placements.items():
        recalled = _recalled(bundle, role, placement, engines[role])
        for each, profile in zip(engines[role], recalled, strict=True):
            if profile is None:
                # One process measures all roles that run on one engine, whatever their stages.
                names = _names(each)
                process = names if len(set(names)) > 1 else names[:1]
                unknown[process, placement.threads][role] = each
                continue
            found[role, _names(each)] = profile
            if profile.refusal is not None:
                _log.info("not tried again before `edgespec profile`: %s", profile.refusal)
    jobs = [Job(bundle, roles, threads, full=False) for (_, threads), roles in unknown.items()]
    for job in jobs:
        large = sum(map(bundle.role_size, job.roles)) >= _LARGE
        _log.log(
            logging.WARNING if large else logging.INFO,
            "measuring %s on %s, once: this load takes longer",
            *(" and ".join(job.roles), job.device),
        )
    for job, measured in zip(jobs, measure_apart(jobs) if jobs else (), strict=True):
        for role, profile in measured.items():
            found[role, _names(job.roles[role])] = profile
    return {
        role: [Candidate(each, found[role, _names(each)]) for each in engines[role]]
        for role in placements
    }


def _recalled(
    bundle: Bundle, role: str, placement: Placement, engines: Sequence[Engines]
) -> list[Profile | None]:
    """What was measured of each, None where nothing was; or of all, where texts tell otherwise."""
    found = [profiles.recall(bundle, role, each, placement.threads) for each in engines]
    known = [(each, profile) for each, profile in zip(engines, found, strict=True) if profile]
    if _contradicted(placement, known):
        _log.info("%s: calls of texts took other times than were measured", role)
        return [None] * len(found)
    return found


def _contradicted(placement: Placement, known: Sequence[tuple[Engines, Profile]]) -> bool:
    """Whether texts saw costs beyond what was measured, and further off than engines are apart.

    The machine may have been busy then, or be now. What `edgespec profile` has measured stays until
    it measures again.
    """
    costs, changes = [], [1.0]
    for engines, profile in known:
        if profile.full:
            return False
        if profile.refusal is not None:
            continue
        shapes = common_shapes(engines)
        low, median, high = (_of_text(placement, profile.curve(shapes, part)) for part in PARTS)
        costs.append(median)
        if profile.lived_calls >= _CALLS * _MORE_CALLS ** min(profile.times - 1, _LONGEST):
            lived = _of_text(placement, profile.lived_curve(shapes))
            if not low <= lived <= high:
                changes.append(max(lived / median, median / lived))
    costs.sort()
    return len(costs) > 1 and max(changes) > costs[1] / costs[0]


def _of_text(placement: Placement, curve: Curve) -> float:
    """Seconds of a usual text, by which engines are compared."""
    decoding, reading = _seconds(placement, curve)
    return _ROUNDS_A_CHUNK * decoding + reading


def _seconds(placement: Placement, curve: Curve) -> tuple[float, float]:
    """Of a round, and of reading the most rows of a prompt at once."""
    capacity = capacity_bucket(1)
    calls = [rows for each in placement.rounds for rows in each]
    decoding = sum(curve.seconds(rows, capacity) for rows in calls) / len(placement.rounds)
    return decoding, curve.seconds(ROW_BUCKETS[-1], capacity)


def _names(engines: Engines) -> Names:
    return tuple(each.name for each in engines)


def _ranked(
    role: str, placement: Placement, candidates: Sequence[Candidate]
) -> tuple[Candidate, ...]:
    costs, refusals = [], []
    for candidate in candidates:
        assert candidate.profile is not None
        if candidate.profile.refusal is not None:
            refusals.append(candidate.profile.refusal)
            continue
        curve = candidate.profile.curve(common_shapes(candidate.engines))
        decoding, reading = _seconds(placement, curve)
        _log.info(
            "%s on %s: %.2f ms a round, %.2f ms for %d rows of a prompt",
            *(role, candidate.device, decoding * 1e3, reading * 1e3, ROW_BUCKETS[-1]),
        )
        costs.append((_of_text(placement, curve), candidate))
    if not costs:
        raise _refused(role, refusals)
    return tuple(candidate for _, candidate in sorted(costs, key=lambda pair: pair[0]))


def _load(bundle: Bundle, role: str, threads: int, candidates: Sequence[Candidate]) -> Loaded:
    """The first candidate that compiles; a library may have been damaged since it was measured."""
    refusals = []
    for candidate in candidates:
        try:
            model = exactness.load(bundle, role, candidate.engines, threads)
        except DeviceError as error:
            if len(candidates) == 1:
                raise
            _log.warning("%s", error)
            refusals.append(str(error))
            continue
        return Loaded(model, candidate.engines, threads, candidate.profile)
    raise _refused(role, refusals)


def _refused(role: str, refusals: Sequence[str]) -> DeviceError:
    reasons = "; ".join(refusals)
    return DeviceError(f"{role}: no engine on this machine takes the model: {reasons}")
