"""Which devices of a machine a target and its draft model are fastest on, by passes timed there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edgespec.bundle import DRAFT, TARGET, Bundle
from edgespec.errors import EdgespecError
from edgespec.llm.load.models import load_model
from edgespec.llm.load.options import LoadOptions
from edgespec.llm.load.place import GPU, find_plan
from edgespec.measuring.passes import pass_seconds
from edgespec.runtime.plan import HOST, Placement
from edgespec.runtime.sequences.model import PassCost
from edgespec.runtime.sequences.queue import chain_seconds

RIGHT = 0.7
"""How often a draft's best token is assumed to be the target's."""

_LONGEST = 8  # drafted tokens of a round


@dataclass(frozen=True)
class RoleTiming:
    """A role on a device.

    Attributes:
        role: its name.
        device: the device's name.
        seconds: of passes by number of rows; of a draft for 1 row alone.
        queued: of each pass of a draft's chain but the first one, where its device queues them.
    """

    role: str
    device: str
    seconds: dict[int, float]
    queued: float | None = None

    def chain(self, count: int) -> float:
        """Returns the seconds of a chain of so many tokens."""
        further = self.seconds[1] if self.queued is None else self.queued
        return self.seconds[1] + (count - 1) * further


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
                / (draft.chain(count) + cost.seconds(1 + count))
                for count in range(1, _LONGEST + 1)
            ]
            found.append(DeviceChoice(target.device, draft.device, max(rates)))
    return sorted(found, key=lambda each: -each.rate)


def _timed(bundle: Bundle, name: str, placed: Placement, threads: int | None) -> RoleTiming:
    model = load_model(bundle, name, placed, threads)
    try:
        if name == TARGET or model.ranking is None:
            seconds = pass_seconds(model, *([] if name == TARGET else [(1,)]))
            return RoleTiming(name, placed.device, seconds)
        first, queued = chain_seconds(model)
        return RoleTiming(name, placed.device, {1: first}, queued)
    finally:
        model.close()
