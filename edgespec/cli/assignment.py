"""Where the nodes of a target's stages would run: what `edgespec inspect --device` tells."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from edgespec.bundle import TARGET, Bundle
from edgespec.errors import InputError

if TYPE_CHECKING:
    from edgespec.runtime.engines import Engine

_KINDS = 4  # that a line names


@dataclass(frozen=True)
class StageAssignment:
    """Where a stage's nodes run.

    Attributes:
        stage: its graph's file.
        here: how many of each kind run on the device.
        elsewhere: nodes that are left to the CPU, as `name (kind)`.
    """

    stage: str
    here: dict[str, int]
    elsewhere: tuple[str, ...]


def assignments(bundle: Bundle, device: str) -> list[StageAssignment]:
    """Compile each of the target's stages, and ask.

    Raises:
        DeviceError: if the device is not there, or refuses a stage.
        InputError: if its engine does not tell.
    """
    from edgespec.runtime.deployment.device_names import CPU
    from edgespec.runtime.deployment.placement import GPU
    from edgespec.runtime.engines import NPU_ENGINES, Assigning, engine
    from edgespec.runtime.execution.stage_files import stage_file

    # cpu and gpu stand for several, none of which tells
    found: Engine | None = None if device in (CPU, GPU) else engine(device)
    if not isinstance(found, Assigning):
        told = ", ".join(name for name in NPU_ENGINES if name.startswith("qnn"))
        raise InputError(f"device {device} does not tell which nodes it runs: use one of {told}")
    told_of = []
    for number in range(len(bundle.target.stages)):
        stage = stage_file(bundle, TARGET, number, found)
        made = found.assignment(stage)
        told_of.append(StageAssignment(stage.graph.name, dict(Counter(made.here)), made.elsewhere))
    return told_of


def assignment_table(device: str, told: list[StageAssignment]) -> Table:
    """A row for each stage."""
    made = Table(title=f"the target on {device}", title_justify="left")
    made.add_column("stage", overflow="fold")
    made.add_column("nodes there", overflow="fold")
    made.add_column("left to the CPU", overflow="fold")
    for each in told:
        most = Counter(each.here).most_common(_KINDS)
        kinds = [f"{count} {kind}" for kind, count in most] + ["…"] * (len(each.here) > len(most))
        there = f"{sum(each.here.values())}: {', '.join(kinds)}" if most else "none"
        made.add_row(each.stage, there, ", ".join(each.elsewhere) or "none")
    return made
