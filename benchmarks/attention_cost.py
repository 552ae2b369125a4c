"""Measures the cost of ordered attention compared with split attention; calls take turns.

    python benchmarks/attention_cost.py CHECKPOINT --work FOLDER --rows 1,2,4,8,16,32,63

The checkpoint is exported twice, as usual and with the attention of drafts, whose results may
depend on the other rows of a call. It prints medians of the ratios of successive calls. On a busy
machine, --cpu-time measures processor time instead of wall-clock time.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from unittest import mock

from common import add_threads, count, counts, exit_code, print_result, print_table
from turns import Turns

from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.export import PRECISIONS, ExportOptions, export_bundle
from edgespec.export.components.attention import SplitAttention
from edgespec.runtime.deployment.device_names import cpu_engines
from edgespec.runtime.engines import Engine
from edgespec.runtime.execution import exactness
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.stage_files import suited

_FORMS = ("split", "ordered")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for bundles, which are kept"
    )
    parser.add_argument("--precision", choices=PRECISIONS, default="int4")
    parser.add_argument("--rows", type=counts, default=[1, 2, 4, 8, 16, 32, 63])
    parser.add_argument("--context", type=count, default=200, help="rows in the cache")
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument(
        "--cpu-time", action="store_true", help="measure processor time of all threads"
    )
    add_threads(parser)
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    made = {form: _bundle(arguments, form) for form in _FORMS}
    found: dict[str, dict[int, float]] = {}
    table: list[list[object]] = []
    for engine in suited(made["split"].target, cpu_engines()):
        runners = [_committed(made[form], engine, arguments) for form in _FORMS]
        turns = Turns(runners, arguments.rows, arguments.rounds, clock)
        found[engine.name] = {rows: turns.ratio(rows, 1) for rows in arguments.rows}
        for rows, ratio in found[engine.name].items():
            times = (turns.ms(rows, form) for form in range(len(_FORMS)))
            table.append([engine.name, rows, *times, ratio])
    print_table(["engine", "rows", "split ms", "ordered ms", "ordered/split"], table)
    print_result(
        "attention_cost",
        {
            "checkpoint": arguments.checkpoint.name,
            "precision": arguments.precision,
            "context": arguments.context,
            "threads": arguments.threads,
            "cpu_time": arguments.cpu_time,
            "ratio": found,
        },
    )


def _bundle(arguments: argparse.Namespace, form: str) -> bundles.Bundle:
    """Returns the bundle, exported now or by an earlier run."""
    path = arguments.work / f"{arguments.checkpoint.name}-{arguments.precision}-{form}"
    if not path.exists():
        options = ExportOptions(arguments.precision)
        if form == "ordered":
            export_bundle(arguments.checkpoint, path, options=options)
        else:
            with mock.patch("edgespec.export.role.OrderedAttention", SplitAttention):
                export_bundle(arguments.checkpoint, path, options=options)
    return bundles.load(path)


def _committed(bundle: bundles.Bundle, engine: Engine, arguments: argparse.Namespace) -> Runner:
    engines = (engine,) * len(bundle.target.stages)
    runner = Runner(exactness.load(bundle, TARGET, engines, arguments.threads))
    runner.skip(arguments.context)
    return runner


if __name__ == "__main__":
    sys.exit(exit_code(main))
