"""`edgespec profile`: what calls of each role cost here, as tables, pictures or JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from edgespec import bundle as bundles
from edgespec.bundle import Bundle
from edgespec.cli.plots import Curves, check_png, save_png, text_plot
from edgespec.errors import DeviceError
from edgespec.models.embedded import BUNDLE
from edgespec.options import LoadOptions

if TYPE_CHECKING:
    from edgespec.runtime.engines import Engine
    from edgespec.runtime.profiling import Report


@dataclass(frozen=True)
class Measured:
    """One line of the result.

    Attributes:
        context: cache capacity in rows, filled up but for the largest call.
        ms: the least milliseconds of several calls by their rows, which took turns.
    """

    role: str
    engine: str
    device: str
    precision: str
    threads: int
    context: int
    ms: dict[int, float]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "bundle", nargs="?", type=Path, default=BUNDLE, metavar="BUNDLE",
        help="a bundle's folder (default: the embedded pair)",
    )  # fmt: skip
    parser.add_argument(
        "--device", action="append", metavar="DEVICE",
        help="cpu: all its engines (the default), or an engine's full name; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=int, metavar="N", help="of each engine (default: physical cores)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the curves in a file")


def execute(arguments: argparse.Namespace) -> int:
    """Measure every role on every engine asked for, remember it, and show it."""
    options = LoadOptions(threads=arguments.threads)
    if arguments.png is not None:
        check_png(arguments.png)
    bundle = bundles.load(arguments.bundle)

    from edgespec.fitting import default_threads

    engines = _engines(arguments.device or [options.device])
    measured = _measure(bundle, engines, options.threads or default_threads())
    if arguments.png is not None:
        panels = {role: _labelled(measured, role) for role in bundle.manifest.roles}
        rows = sorted({n for line in measured for n in line.ms})
        save_png(arguments.png, panels, rows)
    if arguments.json:
        print(json.dumps({"curves": [asdict(line) for line in measured]}))
    else:
        _show(bundle, measured)
    return 0


def _engines(devices: list[str]) -> list[Engine]:
    from edgespec.runtime.selection import engines_of

    return list({each.name: each for name in devices for each in engines_of(name)}.values())


def _measure(bundle: Bundle, engines: list[Engine], threads: int) -> list[Measured]:
    """All curves, role by role.

    Raises:
        DeviceError: if there is a role that no engine takes.
    """
    from edgespec.runtime.profiling import Job, measure_apart, shapes

    roles = bundle.manifest.roles
    points = sum(len(shapes(role, full=True)[1]) for role in roles.values())
    found = {}
    with _progress(points * len(engines)) as watch:
        for each in engines:
            placed = {name: (each,) * len(role.stages) for name, role in roles.items()}
            job = Job(bundle, placed, threads, full=True)
            found[each.name] = measure_apart(job, watch(each.name))
    measured = []
    for name, role in roles.items():
        profiles = [(engine, found[engine][name]) for engine in found]
        if all(profile.refusal is not None for _, profile in profiles):
            reasons = "; ".join(str(profile.refusal) for _, profile in profiles)
            raise DeviceError(f"{name} could not be measured: {reasons}")
        for engine, profile in profiles:
            kind, _, device = engine.partition(":")
            for context, seconds in profile.seconds.items():
                ms = {n: round(s * 1e3, 4) for n, s in seconds.items()}
                precision = role.precision.weights
                line = Measured(name, kind, device, precision, threads, context, ms)
                measured.append(line)
    return measured


@contextmanager
def _progress(points: int) -> Iterator[Callable[[str], Report]]:
    """A bar on stderr if that is a terminal, nothing if not; makes the report of each engine."""
    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    shown = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    with shown as progress:
        bar = progress.add_task("", total=points)

        def watch(engine: str) -> Report:
            def report(role: str, capacity: int) -> None:
                progress.update(bar, description=f"{engine} {role} {capacity}", advance=1)

            progress.update(bar, description=engine)
            return report

        yield watch


def _show(bundle: Bundle, measured: list[Measured]) -> None:
    console = Console()
    for name, role in bundle.manifest.roles.items():
        lines = [line for line in measured if line.role == name]
        title = (
            f"{name}: {role.parameters:,} parameters, {role.precision.weights}, "
            f"{lines[0].threads} threads: T(n) in ms, over T(1)"
        )
        console.print(_table(title, lines))
        console.print(text_plot(_labelled(measured, name)), markup=False, highlight=False)
        console.print()


def _table(title: str, lines: list[Measured]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    table.add_column("engine", no_wrap=True)
    table.add_column("context", justify="right")
    for n in lines[0].ms:
        table.add_column(f"T({n})", justify="right")
    for line in lines:
        one = line.ms[min(line.ms)]
        cells = [f"{_digits(ms)}\n{ms / one:.2f}x" for ms in line.ms.values()]
        table.add_row(f"{line.engine}:{line.device}", str(line.context), *cells)
    return table


def _digits(ms: float) -> str:
    """Three of them, which is more than a measurement is good for."""
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}"


def _labelled(measured: list[Measured], role: str) -> Curves:
    """The smallest and the largest context of each engine: more would hide one another."""
    lines = [line for line in measured if line.role == role]
    ends = {min(line.context for line in lines), max(line.context for line in lines)}
    return {
        f"{line.engine}:{line.device} at {line.context}": line.ms
        for line in lines
        if line.context in ends
    }
