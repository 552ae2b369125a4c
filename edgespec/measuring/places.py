"""Which devices of a machine a target and its draft model are fastest on, by passes timed there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from edgespec.bundle import DRAFT, TARGET, Bundle
from edgespec.errors import EdgespecError
from edgespec.llm.load.open import load_model
from edgespec.llm.load.options import LoadOptions
from edgespec.llm.load.place import GPU, find_plan
from edgespec.measuring.passes import pass_seconds
from edgespec.runtime.plan import HOST, Placement
from edgespec.runtime.sequences.model import AFTER, Model, PassCost, Rows
from edgespec.runtime.sequences.queue import ranked_rows

RIGHT = 0.7
"""How often a draft's best token is assumed to be the target's."""

_CHAIN, _REPEATS = 5, 4
_LONGEST = 8  # drafted tokens of a round


@dataclass(frozen=True)
class RoleTiming:
    """A role on a device.

    Attributes:
        role: its name.
        device: the device's name.
        seconds: of passes by number of rows; of a draft, of a token of a chain, for 1 row.
    """

    role: str
    device: str
    seconds: dict[int, float]


@dataclass(frozen=True)
class DeviceChoice:
    """What devices promise.

    Attributes:
        target: the target's device.
        draft: the draft's; None: nothing is drafted.
        rate: tokens a second.
    """

    target: str
    draft: str | None
    rate: float


def timed_places(bundle: Bundle, threads: int | None) -> Iterator[RoleTiming | str]:
    """Times the target and its draft model on the CPU and on the best GPU.

    Yields:
        What was timed, or why something could not be.

    Args:
        bundle: the bundle.
        threads: on the CPU; None: one for each physical core.
    """
    for device in (HOST, GPU):
        asked = LoadOptions(device=device, draft_device=device, threads=threads)
        try:
            found = find_plan(bundle, asked)
            found.require_fit()
        except EdgespecError as error:
            yield str(error)
            continue
        for name, placed in found.roles.items():
            if name == TARGET or not bundle.manifest.roles[name].is_head:
                yield _timed(bundle, name, placed, threads)


def expectations(timed: list[RoleTiming]) -> list[DeviceChoice]:
    """Returns what each choice of devices promises, the best first.

    A draft beside a target on another device drafts on while that works; that is left out.
    """
    found = []
    for target in (each for each in timed if each.role == TARGET):
        cost = PassCost(target.seconds)
        found.append(DeviceChoice(target.device, None, 1 / cost.seconds(1)))
        for draft in (each for each in timed if each.role == DRAFT):
            rates = [
                sum(RIGHT**n for n in range(count + 1))
                / (count * draft.seconds[1] + cost.seconds(1 + count))
                for count in range(1, _LONGEST + 1)
            ]
            found.append(DeviceChoice(target.device, draft.device, max(rates)))
    return sorted(found, key=lambda each: -each.rate)


def _timed(bundle: Bundle, name: str, placed: Placement, threads: int | None) -> RoleTiming:
    model = load_model(bundle, name, placed, threads)
    try:
        seconds = pass_seconds(model) if name == TARGET else {1: _chain_seconds(model)}
    finally:
        model.close()
    return RoleTiming(name, placed.device, seconds)


def _chain_seconds(model: Model) -> float:
    """Returns the least seconds of a token of a chain, queued where the model's device does."""
    if model.ranking is None:
        return pass_seconds(model, (1,))[1]
    least = float("inf")
    for _ in range(1 + _REPEATS):
        rows = Rows(model.sequence([]), [1], [AFTER], [0])
        begin = time.perf_counter()
        [found] = ranked_rows(model, [rows], _CHAIN - 1)
        least = min(least, (time.perf_counter() - begin) / _CHAIN)
        model.pool.free([*rows.slots, *found.slots])
    return least
