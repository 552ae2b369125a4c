"""Which of the engines that may run a role are used: for `cpu` the cheaper one, by measurement.

What is compared is a usual text, its prompt included: an engine that is a little faster at single
rows may take twice as long to read a prompt. Where the calls of texts took other times than were
measured, by more than engines are apart, all are measured once more.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgespec.bundle import Bundle
from edgespec.errors import DeviceError
from edgespec.runtime.costs import profiles
from edgespec.runtime.costs.isolated import Job, measure_apart
from edgespec.runtime.costs.profiles import PARTS, Profile
from edgespec.runtime.curve import Curve
from edgespec.runtime.engines import Engines, common_shapes, joined_names
from edgespec.runtime.shapes import ROW_BUCKETS, Shape, capacity_bucket

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
class RoleRequest:
    """How a role is to run.

    Attributes:
        choices: engines for its stages, the preferred first: by measured costs where all are
            known, else the one that needs most memory, since where it fits the others do.
        threads: for each engine's operators.
        rounds: usual rounds of decoding, each as the rows of its calls of this role; by them, and
            by what reading a prompt costs, choices are compared.
        ready: shapes that none of its NPUs has to compile any more.
    """

    choices: tuple[Engines, ...]
    threads: int = 1
    rounds: tuple[tuple[int, ...], ...] = ((1,),)
    ready: frozenset[Shape] = frozenset()


@dataclass(frozen=True)
class Candidate:
    """Engines that may run a role's stages.

    Attributes:
        engines: one for each stage.
        profile: what calls cost on them; None: not known, or nobody asked.
    """

    engines: Engines
    profile: Profile | None = None

    @property
    def names(self) -> Names:
        """The engines' names, one for each stage."""
        return names_of(self.engines)

    @property
    def device(self) -> str:
        """The engines' names, joined by `+`."""
        return joined_names(self.names)


def names_of(engines: Engines) -> Names:
    """The engines' names, one for each stage."""
    return tuple(each.name for each in engines)


def known_costs(bundle: Bundle, role: str, asked: RoleRequest) -> list[Profile | None]:
    """What was measured of each choice before, None where nothing was.

    None of any where texts since then took other times than what was measured.
    """
    found = [profiles.recall(bundle, role, each, asked.threads) for each in asked.choices]
    known = [(each, p) for each, p in zip(asked.choices, found, strict=True) if p is not None]
    if _contradicted(asked, known):
        _log.info("%s: calls of texts took other times than were measured", role)
        return [None] * len(found)
    return found


def preferred(bundle: Bundle, role: str, asked: RoleRequest) -> tuple[Engines, ...]:
    """The choices of a role, the cheapest for a text first; none where not all are known.

    Raises:
        DeviceError: if all refused the role.
    """
    known = known_costs(bundle, role, asked)
    if None in known:
        return ()
    candidates = list(map(Candidate, asked.choices, known))
    return tuple(each.engines for each in ranked(role, asked, candidates))


def measured_costs(bundle: Bundle, asked: Mapping[str, RoleRequest]) -> dict[str, list[Candidate]]:
    """The choices of roles with what calls cost on them: recalled, or measured now.

    What is unknown is measured in processes of its own, all roles on one engine in one of them.
    """
    found: dict[tuple[str, Names], Profile] = {}
    unknown: defaultdict[tuple[Names, int], dict[str, Engines]] = defaultdict(dict)
    for role, request in asked.items():
        recalled = known_costs(bundle, role, request)
        for each, profile in zip(request.choices, recalled, strict=True):
            names = names_of(each)
            if profile is None:
                process = names if len(set(names)) > 1 else names[:1]
                unknown[process, request.threads][role] = each
                continue
            found[role, names] = profile
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
            found[role, names_of(job.roles[role])] = profile
    return {
        role: [Candidate(each, found[role, names_of(each)]) for each in request.choices]
        for role, request in asked.items()
    }


def ranked(role: str, asked: RoleRequest, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Candidates whose costs are known, the cheapest for a text first; those that refused left out.

    Raises:
        DeviceError: if all refused the role.
    """
    costs, refusals = [], []
    for candidate in candidates:
        assert candidate.profile is not None, "costs are not known"
        if candidate.profile.refusal is not None:
            refusals.append(candidate.profile.refusal)
            continue
        decoding, reading = _seconds(asked, _curve(candidate.engines, candidate.profile))
        _log.info(
            "%s on %s: %.2f ms a round, %.2f ms for %d rows of a prompt",
            *(role, candidate.device, decoding * 1e3, reading * 1e3, ROW_BUCKETS[-1]),
        )
        costs.append((_ROUNDS_A_CHUNK * decoding + reading, candidate))
    if not costs:
        raise refused(role, refusals)
    return tuple(candidate for _, candidate in sorted(costs, key=lambda pair: pair[0]))


def round_ms(asked: RoleRequest, candidate: Candidate) -> float:
    """Milliseconds of a usual round on a candidate whose costs are known."""
    assert candidate.profile is not None
    return 1e3 * _seconds(asked, _curve(candidate.engines, candidate.profile))[0]


def refused(role: str, refusals: Sequence[str]) -> DeviceError:
    """The error where no engine takes a role."""
    reasons = "; ".join(refusals)
    return DeviceError(f"{role}: no engine on this machine takes the model: {reasons}")


def _contradicted(asked: RoleRequest, known: Sequence[tuple[Engines, Profile]]) -> bool:
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
        low, median, high = (_of_text(asked, profile.curve(shapes, part)) for part in PARTS)
        costs.append(median)
        if profile.lived_calls >= _CALLS * _MORE_CALLS ** min(profile.times - 1, _LONGEST):
            lived = _of_text(asked, profile.lived_curve(shapes))
            if not low <= lived <= high:
                changes.append(max(lived / median, median / lived))
    costs.sort()
    return len(costs) > 1 and max(changes) > costs[1] / costs[0]


def _of_text(asked: RoleRequest, curve: Curve) -> float:
    decoding, reading = _seconds(asked, curve)
    return _ROUNDS_A_CHUNK * decoding + reading


def _seconds(asked: RoleRequest, curve: Curve) -> tuple[float, float]:
    """Of a usual round, and of reading the most rows of a prompt at once."""
    capacity = capacity_bucket(1)
    calls = [rows for each in asked.rounds for rows in each]
    decoding = sum(curve.seconds(rows, capacity) for rows in calls) / len(asked.rounds)
    return decoding, curve.seconds(ROW_BUCKETS[-1], capacity)


def _curve(engines: Engines, profile: Profile) -> Curve:
    return profile.curve(common_shapes(engines))
