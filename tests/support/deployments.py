"""Deployments of roles with given devices, without a user's options."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.runtime.deployment.deployment import (
    Deployment,
    RoleDeployment,
    load,
    with_costs,
)
from edgespec.runtime.deployment.options import LoadOptions
from edgespec.runtime.deployment.resolve import engines_for
from edgespec.runtime.deployment.selection import Candidate, RoleRequest, preferred
from edgespec.runtime.shapes import ROW_BUCKETS


@dataclass(frozen=True)
class Placement:
    """Where a role is to run: on one device, or one device for each stage."""

    device: str | tuple[str, ...]
    threads: int = 1
    rounds: tuple[tuple[int, ...], ...] = ((1,),)


def requested(bundle, role, placement):
    """Returns the request that a placement stands for."""
    found = bundle.manifest.roles[role]
    at = placement.device
    devices = (at,) * len(found.stages) if isinstance(at, str) else at
    choices = tuple(engines_for(found, devices))
    return RoleRequest(choices, placement.threads, placement.rounds)


def stated(bundle, placements):
    """Returns a deployment of these roles that needs no memory."""
    roles = {}
    for name, placement in placements.items():
        asked = requested(bundle, name, placement)
        roles[name] = RoleDeployment(tuple(map(Candidate, asked.choices)), asked, 0, "stated")
    return Deployment(
        bundle, LoadOptions(), True, 4096, "none", 0, ROW_BUCKETS[-1], roles, (), (), ()
    )


def choose(bundle, placements, costs=False):
    """Returns the candidates of each role; the cheapest first if costs are known or asked for."""
    roles = with_costs(stated(bundle, placements), always=costs).roles
    return {name: role.candidates for name, role in roles.items()}


def load_models(bundle, placements, costs=False):
    """Load the roles, compiled on the chosen engines."""
    return load(with_costs(stated(bundle, placements), always=costs))


def known_order(bundle, role, placement):
    """See `selection.preferred`."""
    return preferred(bundle, role, requested(bundle, role, placement))
