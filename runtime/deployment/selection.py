"""Chooses the engines of a role by measured costs, if its device leaves the choice open.

Engines are compared by a typical text including its prompt: an engine that is slightly faster at
single rows may take twice as long to read a prompt. If calls of real texts took other times than
were measured, and the difference could change the choice, all engines are measured again.
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

# Rounds of decoding for each full call that reads the prompt of a typical text: 128 rounds after a
# prompt of 512 tokens.
_ROUNDS_A_CHUNK = 32

# Number of calls of texts before engines may be measured again. It grows with each measurement,
# since measuring may not reproduce what slows texts down.
_CALLS, _MORE_CALLS, _LONGEST = 64, 4, 8

_LARGE = 64 << 20  # bytes of a bundle's roles from which measuring takes long: users are told


@dataclass(frozen=True)
class RoleRequest:
    """A request to run a role.

    Attributes:
        choices: choices of engines for its stages, the preferred one first: the fastest if the
            costs of all are known, else the one that needs most memory (if it fits, all do).
        threads: number of threads per engine.
        rounds: typical rounds of decoding, each a tuple of the rows of this role's calls. Choices
            are compared by the cost of these rounds and of reading a prompt.
        ready: shapes that all of its NPUs are already compiled for.
    """

    choices: tuple[Engines, ...]
    threads: int = 1
    rounds: tuple[tuple[int, ...], ...] = ((1,),)
    ready: frozenset[Shape] = frozenset()


@dataclass(frozen=True)
class Candidate:
    """A choice of engines for a role's stages.

    Attributes:
        engines: the engines, one for each stage.
        profile: measured costs on these engines; None if not known or not needed.
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
    """Returns the stored profile of each choice, None for one that was not measured.

    All are None if calls of texts contradict the measured costs.
    """
    found = [profiles.recall(bundle, role, each, asked.threads) for each in asked.choices]
    known = [(each, p) for each, p in zip(asked.choices, found, strict=True) if p is not None]
    if _contradicted(asked, known):
        _log.info("%s: calls of texts took other times than were measured", role)
        return [None] * len(found)
    return found


def preferred(bundle: Bundle, role: str, asked: RoleRequest) -> tuple[Engines, ...]:
    """Returns the choices of a role, the cheapest for a text first; empty if costs are missing.

    Raises:
        DeviceError: if all choices refused the role.
    """
    known = known_costs(bundle, role, asked)
    if None in known:
        return ()
    candidates = list(map(Candidate, asked.choices, known))
    return tuple(each.engines for each in ranked(role, asked, candidates))


def measured_costs(bundle: Bundle, asked: Mapping[str, RoleRequest]) -> dict[str, list[Candidate]]:
    """Returns the choices of each role with their costs, stored ones or measured now.

    Unknown costs are measured in separate processes, one for each engine with all of its roles.
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
                _log.info("not tried again until `edgespec profile` is run: %s", profile.refusal)
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
    """Sorts candidates whose costs are known, the cheapest for a text first.

    Candidates whose engines refused the role are left out.

    Raises:
        DeviceError: if all candidates refused the role.
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
    """Returns the milliseconds of a typical round on a candidate whose costs are known."""
    assert candidate.profile is not None
    return 1e3 * _seconds(asked, _curve(candidate.engines, candidate.profile))[0]


def refused(role: str, refusals: Sequence[str]) -> DeviceError:
    """Returns the error for a role that no engine accepts."""
    reasons = "; ".join(refusals)
    return DeviceError(f"{role}: no engine on this machine can run the model: {reasons}")


def _contradicted(asked: RoleRequest, known: Sequence[tuple[Engines, Profile]]) -> bool:
    """Returns whether costs seen in texts contradict the measured ones.

    They do if they lie outside the measured spread, and by a larger factor than separates the two
    fastest choices. The machine may have been busy while measuring. Full profiles, which
    `edgespec profile` makes, are never contradicted.
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
    """Returns the seconds of a typical round, and of a call that reads the most prompt rows."""
    capacity = capacity_bucket(1)
    calls = [rows for each in asked.rounds for rows in each]
    decoding = sum(curve.seconds(rows, capacity) for rows in calls) / len(asked.rounds)
    return decoding, curve.seconds(ROW_BUCKETS[-1], capacity)


def _curve(engines: Engines, profile: Profile) -> Curve:
    return profile.curve(common_shapes(engines))
