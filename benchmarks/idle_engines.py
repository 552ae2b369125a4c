"""Measures whether idle engines slow down others; they should neither spin nor take cores.

    python benchmarks/idle_engines.py [BUNDLE]

Each pair of CPU engines is loaded in one process. It measures the processor time while both are
idle, right after a call of each, and compares passes of the target right after a draft call with
passes right after another pass, in turns. After the draft, the target's weights are cold, which
costs a few per cent; spinning threads would cost half of the cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import psutil
from common import add_threads, count, exit_code, print_result, print_table

from edgespec import bundle as bundles
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner

if TYPE_CHECKING:
    from edgespec.bundle import Bundle

_IDLE_SECONDS = 0.5
_PASS_ROWS, _CALL_ROWS = 8, 4


def main() -> None:
    arguments = _parse_arguments()
    bundle = bundles.load(arguments.bundle)
    rows = [
        _pair(bundle, target, draft, arguments) for target, draft in product(CPU_ENGINES, repeat=2)
    ]
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    print_result(
        "idle_engines",
        {"bundle": bundle.digest, "threads": arguments.threads, "pairs": rows},
    )


def _pair(
    bundle: Bundle, target: str, draft: str, arguments: argparse.Namespace
) -> dict[str, object]:
    threads = arguments.threads
    passes = Runner(Model.load(bundle, bundles.TARGET, engine(target), threads))
    calls = Runner(Model.load(bundle, bundles.DRAFT, engine(draft), threads))
    chain, level = Rows.chain([0] * _PASS_ROWS), Rows.chain([0] * _CALL_ROWS)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * arguments.turns + 2):
        behind = turn % 2 == 0
        (calls if behind else passes).verify(level if behind else chain)
        begin = time.perf_counter()
        passes.verify(chain)
        if turn >= 2:
            seconds[behind].append(time.perf_counter() - begin)
    calls.verify(level)
    return {
        "target": target,
        "draft": draft,
        "idle cores": round(_busy_cores(), 3),
        "pass ms": round(median(seconds[False]) * 1e3, 3),
        "behind a draft's call": round(median(seconds[True]) / median(seconds[False]), 3),
    }


def _busy_cores() -> float:
    """Returns the processor time of this process while it waits, divided by wall-clock time."""
    process = psutil.Process()
    before, begin = process.cpu_times(), time.perf_counter()
    time.sleep(_IDLE_SECONDS)
    after, waited = process.cpu_times(), time.perf_counter() - begin
    return float(after.user - before.user + after.system - before.system) / waited


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Do idle engines cost anything?")
    parser.add_argument(
        "bundle", type=Path, nargs="?", default=BUNDLE, help="folder of a bundle with a draft model"
    )
    parser.add_argument("--turns", type=count, default=100, help="calls of each kind (default 100)")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
