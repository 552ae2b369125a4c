"""`edgespec profile`: the time of each role's calls on this machine, as tables, plots or JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from edgespec import bundle as bundles
from edgespec.api.loading import LoadOptions
from edgespec.bundle import TARGET, Bundle
from edgespec.cli.arguments import PLACE_HELP, THREADS_HELP, add_bundle
from edgespec.cli.plots import Curves, check_png, save_png, text_plot
from edgespec.cli.progress import Show, progress_bar
from edgespec.errors import DeviceError

if TYPE_CHECKING:
    from edgespec.runtime.costs.isolated import Job
    from edgespec.runtime.engines import Engines

    Choice = Mapping[str, Engines]  # the engines of each measured role's stages


@dataclass(frozen=True)
class Measured:
    """One cost curve: the times of a role's calls on an engine.

    Attributes:
        role: name of the role.
        engine: name of the engine.
        device: device of the engine.
        place: device of each of the target's layers, if the user placed them.
        precision: precision of the weights.
        threads: number of threads per engine.
        context: cache capacity in rows; the cache is full except for room for the largest call.
        ms: median milliseconds of a call by its number of rows.
    """

    role: str
    engine: str
    device: str
    place: str | None
    precision: str
    threads: int
    context: int
    ms: dict[int, float]

    @property
    def where(self) -> str:
        """The engine and device or the placement, which tell curves of a role apart."""
        return self.place or f"{self.engine}:{self.device}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    add_bundle(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--device", action="append", metavar="DEVICE",
        help="device to measure: an engine's full name, or cpu for all CPU engines (the default); "
        "may be repeated",
    )  # fmt: skip
    where.add_argument(
        "--place", metavar="LAYERS=DEVICE,...", help=f"{PLACE_HELP}; measures only the target"
    )
    parser.add_argument("--threads", type=int, metavar="N", help=THREADS_HELP)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--png", type=Path, metavar="FILE", help="save a plot of the curves")


def execute(arguments: argparse.Namespace) -> int:
    """Measures, stores and shows the costs of every role on every engine, or the placed target."""
    options = LoadOptions(threads=arguments.threads, place=arguments.place)
    if arguments.png is not None:
        check_png(arguments.png)
    bundle = bundles.load(arguments.bundle)
    choices = _choices(bundle, options, arguments.device or [options.device])
    measured = _measure(bundle, choices, options)
    if arguments.json:
        print(json.dumps({"curves": [asdict(line) for line in measured]}))
    else:
        _show(bundle, measured)
    if arguments.png is not None:  # last, so that no results are lost if it cannot be written
        panels = {role: _labelled(measured, role) for role in choices[0]}
        rows = sorted({n for line in measured for n in line.ms})
        save_png(arguments.png, panels, rows)
    return 0


def _choices(bundle: Bundle, options: LoadOptions, devices: list[str]) -> list[Choice]:
    """Returns all roles on each engine, or the placed target on each engine of its devices."""
    from edgespec.runtime.deployment.deployment import target_choices

    if options.place is not None:
        return [{TARGET: engines} for engines in target_choices(bundle, options)]
    wished = (replace(options, device=name) for name in devices)
    found = (choice[0] for each in wished for choice in target_choices(bundle, each))
    engines = {each.name: each for each in found}.values()
    roles = bundle.manifest.roles.items()
    return [{name: (each,) * len(role.stages) for name, role in roles} for each in engines]


def _measure(bundle: Bundle, choices: Sequence[Choice], options: LoadOptions) -> list[Measured]:
    """Measures all curves, role by role.

    Raises:
        DeviceError: if no engine can run one of the roles.
    """
    from edgespec.runtime.costs.isolated import Job, measure_apart
    from edgespec.runtime.costs.timing import shapes
    from edgespec.runtime.deployment.placement import describe_stages
    from edgespec.runtime.engines import joined_names
    from edgespec.system.machine import default_threads

    roles, threads = bundle.manifest.roles, options.threads or default_threads()
    points = sum(len(shapes(roles[name], full=True)) for choice in choices for name in choice)
    jobs = [Job(bundle, choice, threads, full=True) for choice in choices]
    with progress_bar(points) as show:
        show(jobs[0].device, 0)
        found = list(zip(choices, measure_apart(jobs, partial(_report, show)), strict=True))
    measured = []
    for name in choices[0]:
        if all(profiles[name].refusal is not None for _, profiles in found):
            reasons = "; ".join(str(profiles[name].refusal) for _, profiles in found)
            raise DeviceError(f"{name} could not be measured: {reasons}")
        for choice, profiles in found:
            engines = [each.name for each in choice[name]]
            kinds, devices = zip(*(each.split(":") for each in engines), strict=True)
            place = describe_stages(roles[name], engines) if options.place else None
            precision = roles[name].precision.weights
            for context, seconds in profiles[name].seconds.items():
                measured.append(
                    Measured(
                        name, joined_names(kinds), joined_names(devices), place, precision,
                        threads, context,
                        {n: round(s * 1e3, 4) for n, s in seconds.items()},
                    )
                )  # fmt: skip
    return measured


def _report(show: Show, job: Job, role: str, capacity: int) -> None:
    show(f"{job.device} {role} {capacity}", 1)


def _show(bundle: Bundle, measured: list[Measured]) -> None:
    console = Console()
    for name in dict.fromkeys(line.role for line in measured):
        role = bundle.manifest.roles[name]
        lines = [line for line in measured if line.role == name]
        title = (
            f"{name}: {role.parameters:,} parameters, {role.precision.weights}, "
            f"{lines[0].threads} threads: time T(n) of a call of n rows in ms, and T(n) / T(1)"
        )
        console.print(_table(title, lines))
        console.print(text_plot(_labelled(measured, name)), markup=False, highlight=False)
        console.print()


def _table(title: str, lines: list[Measured]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("engine", no_wrap=True)
    table.add_column("context", justify="right")
    for n in lines[0].ms:
        table.add_column(f"T({n})", justify="right")
    for line in lines:
        one = line.ms[min(line.ms)]
        cells = [f"{_digits(ms)}\n{ms / one:.2f}x" for ms in line.ms.values()]
        table.add_row(line.where.replace(",", "\n"), str(line.context), *cells)
    return table


def _digits(ms: float) -> str:
    """Formats milliseconds with three significant digits."""
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}"


def _labelled(measured: list[Measured], role: str) -> Curves:
    """Returns the curves with the smallest and largest context of each engine, to fit one plot."""
    lines = [line for line in measured if line.role == role]
    shown: list[Measured] = []
    for where in dict.fromkeys(line.where for line in lines):
        mine = sorted((n for n in lines if n.where == where), key=lambda line: line.context)
        shown += [mine[0], *mine[1:][-1:]]
    return {f"{line.where} at {line.context}": line.ms for line in shown}
