"""Compares the cost of calls of one model in several bundles, for example of several precisions.

    python benchmarks/precision_cost.py qwen-int4-small qwen-int4 qwen-int8 --rows 1,2,4,8,16

Calls take turns. It prints milliseconds, and ratios to the first bundle's calls. With `--role
draft` the draft models run instead of the targets.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import add_threads, count, counts, exit_code, print_result, print_table
from turns import Turns

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET
from edgespec.runtime.deployment.device_names import cpu_engines
from edgespec.runtime.execution import exactness
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.stage_files import suited


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    parser.add_argument("--role", choices=(TARGET, DRAFT), default=TARGET)
    parser.add_argument("--rows", type=counts, default=[1, 2, 4, 8, 16])
    parser.add_argument("--context", type=count, default=200, help="rows in the cache")
    parser.add_argument("--rounds", type=count, default=9)
    add_threads(parser)
    arguments = parser.parse_args()
    loaded = [bundles.load(path) for path in arguments.bundles]
    table: list[list[object]] = []
    for engine in suited(loaded[0].manifest.roles[arguments.role], cpu_engines()):
        runners = []
        for each in loaded:
            engines = (engine,) * len(each.manifest.roles[arguments.role].stages)
            runner = Runner(exactness.load(each, arguments.role, engines, arguments.threads))
            runner.skip(arguments.context)
            runners.append(runner)
        turns = Turns(runners, arguments.rows, arguments.rounds)
        for number, path in enumerate(arguments.bundles):
            for rows in arguments.rows:
                cost = turns.ms(rows, number), turns.ratio(rows, number)
                table.append([engine.name, path.name, rows, *cost])
    headings = ["engine", "bundle", "rows", "ms", "to first"]
    print_table(headings, table)
    lines = [dict(zip(headings, line, strict=True)) for line in table]
    settings = {"role": arguments.role, "context": arguments.context, "threads": arguments.threads}
    print_result("precision_cost", {**settings, "lines": lines})


if __name__ == "__main__":
    sys.exit(exit_code(main))
