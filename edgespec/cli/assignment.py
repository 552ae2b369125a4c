"""Assignment of a target's graph nodes to a device or the CPU, for `edgespec inspect --device`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from edgespec.bundle import TARGET, Bundle
from edgespec.errors import InputError

if TYPE_CHECKING:
    from edgespec.runtime.engines import Engine

_KINDS = 4  # kinds of nodes that a line names


@dataclass(frozen=True)
class StageAssignment:
    """Assignment of a stage's nodes.

    Attributes:
        stage: file of the stage's graph.
        here: number of nodes that run on the device, by kind.
        elsewhere: nodes that are left to the CPU, as `name (kind)`.
    """

    stage: str
    here: dict[str, int]
    elsewhere: tuple[str, ...]


def assignments(bundle: Bundle, device: str) -> list[StageAssignment]:
    """Compiles each of the target's stages for a device and returns the assignment of its nodes.

    Raises:
        DeviceError: if the device does not exist, or refuses a stage.
        InputError: if the device's engine does not report the assignment.
    """
    from edgespec.runtime.deployment.device_names import CPU
    from edgespec.runtime.deployment.placement import GPU
    from edgespec.runtime.engines import NPU_ENGINES, Assigning, engine
    from edgespec.runtime.execution.stage_files import stage_file

    # cpu and gpu stand for several engines, none of which reports the assignment
    found: Engine | None = None if device in (CPU, GPU) else engine(device)
    if not isinstance(found, Assigning):
        names = ", ".join(name for name in NPU_ENGINES if name.startswith("qnn"))
        raise InputError(f"device {device} does not tell which nodes it runs: use one of {names}")
    stages = []
    for number in range(len(bundle.target.stages)):
        stage = stage_file(bundle, TARGET, number, found)
        assigned = found.assignment(stage)
        here = dict(Counter(assigned.here))
        stages.append(StageAssignment(stage.graph.name, here, assigned.elsewhere))
    return stages


def assignment_table(device: str, stages: list[StageAssignment]) -> Table:
    """Returns a table with one row per stage."""
    table = Table(title=f"the target on {device}", title_justify="left")
    table.add_column("stage", overflow="fold")
    table.add_column("nodes on the device", overflow="fold")
    table.add_column("left to the CPU", overflow="fold")
    for each in stages:
        most = Counter(each.here).most_common(_KINDS)
        kinds = [f"{count} {kind}" for kind, count in most] + ["…"] * (len(each.here) > len(most))
        here = f"{sum(each.here.values())}: {', '.join(kinds)}" if most else "none"
        table.add_row(each.stage, here, ", ".join(each.elsewhere) or "none")
    return table
