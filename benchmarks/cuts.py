"""Measures the cost of cuts: passes of one target in 1, 2, 4 and 8 stages, on each engine.

    python benchmarks/cuts.py models/embedded/checkpoints/python-7m --precision int8

The target is exported into a temporary folder with each number of stages, of equally many layers.
Numbers of stages take turns, so that other load on the machine affects all of them alike.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from common import add_threads, count, counts, exit_code, print_result, print_table

from edgespec import bundle as bundles
from edgespec.export import ExportOptions, export_bundle
from edgespec.measuring.prompts import PYTHON
from edgespec.models import load_checkpoint
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.text.tokenizer import Tokenizer

_STAGES = (1, 2, 4, 8)
_WARM_UP = 3  # turns


@dataclass(frozen=True)
class Cost:
    """The cost of passes of `rows` rows with a target in `stages` stages.

    Attributes:
        milliseconds: Median milliseconds of a pass.
        ratio: Ratio to the cost with one stage.
    """

    engine: str
    rows: int
    stages: int
    milliseconds: float
    ratio: float


def main() -> None:
    arguments = _parse_arguments()
    layers = len(load_checkpoint(arguments.checkpoint).decoder.layers)
    stages = [number for number in _STAGES if number <= layers]
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        os.environ["EDGESPEC_CACHE"] = f"{folder}/cache"  # what engines make of these goes, too
        made = {number: _export(arguments, Path(folder), layers, number) for number in stages}
        for name in CPU_ENGINES:
            costs += _measure(made, name, arguments)
    header = ["engine", "rows", *(f"{number} ms" for number in stages)]
    header += [f"{number} / 1" for number in stages[1:]]
    lines = []
    for first in range(0, len(costs), len(stages)):
        line = costs[first : first + len(stages)]
        times, ratios = [c.milliseconds for c in line], [c.ratio for c in line[1:]]
        lines.append([line[0].engine, line[0].rows, *times, *ratios])
    print_table(header, lines)
    settings = {name: getattr(arguments, name) for name in ("precision", "context", "threads")}
    facts = {"checkpoint": arguments.checkpoint.name, "layers": layers, **settings}
    values = {"rounds": arguments.rounds, "costs": [asdict(cost) for cost in costs]}
    print_result("cuts", {**facts, **values})


def _export(
    arguments: argparse.Namespace, folder: Path, layers: int, stages: int
) -> bundles.Bundle:
    output = folder / str(stages)
    cuts = tuple(layers * number // stages for number in range(1, stages))
    options = ExportOptions(arguments.precision, cut_layers=cuts)
    export_bundle(arguments.checkpoint, output, options=options)
    return bundles.load(output)


def _measure(
    made: dict[int, bundles.Bundle], name: str, arguments: argparse.Namespace
) -> list[Cost]:
    """Measures all numbers of rows and stages on one engine."""
    text = Tokenizer.from_folder(made[1].path).encode("\n\n".join(PYTHON))
    tokens = list(islice(cycle(text), arguments.context + max(arguments.rows)))
    runners = {}
    for stages, bundle in made.items():
        model = Model.load(bundle, bundles.TARGET, engine(name), arguments.threads)
        runners[stages] = Runner(model)
        runners[stages].prefill(tokens[: arguments.context])
    costs = []
    for n in arguments.rows:
        rows = Rows.chain(tokens[-n:])
        samples: dict[int, list[float]] = {stages: [] for stages in runners}
        for turn in range(_WARM_UP + arguments.rounds):
            for stages, runner in runners.items():
                begin = time.perf_counter()
                runner.verify(rows)
                if turn >= _WARM_UP:
                    samples[stages].append(time.perf_counter() - begin)
        one = median(samples[1])
        for stages, seconds in samples.items():
            taken = median(seconds)
            costs.append(Cost(name, n, stages, round(taken * 1e3, 3), round(taken / one, 3)))
    return costs


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The cost of a target in several stages.")
    parser.add_argument("checkpoint", type=Path, help="folder of the target")
    parser.add_argument("--precision", default="int4", help="precision, as for edgespec export")
    parser.add_argument("--rows", type=counts, default=[1, 8], help="rows of a pass (default 1,8)")
    parser.add_argument(
        "--context", type=count, default=256, help="rows in the cache (default 256)"
    )
    parser.add_argument(
        "--rounds", type=count, default=30, help="repeats; the median is reported (default 30)"
    )
    parser.add_argument("--scratch", type=Path, help="folder for temporary bundles")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
