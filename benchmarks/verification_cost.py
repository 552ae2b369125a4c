r"""Measures the cost of verifying n rows: T(n) of each engine, and T(n)/T(1).

    python benchmarks/verification_cost.py BUNDLE --rows 1,2,4,8,16 --context 256
    python benchmarks/verification_cost.py BUNDLE --rows 1,8,64 --lengths 256,4096,16384 \
        --device openvino:cpu --device openvino:cpu-bf16

Speculation pays if a pass over n rows costs little more than a pass over one. Engines and numbers
of rows take turns, so that other load on the machine affects all of them alike. The text in the
cache is code that repeats; behind each length the same engines go on reading it.

`benchmarks/operators.py` says what operators a pass spends its time in.

`--precisions` also measures OpenVINO without quantized activations, in float32 and in bfloat16.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from common import add_threads, count, counts, exit_code, print_result, print_table

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT
from edgespec.measuring.prompts import PYTHON
from edgespec.runtime.deployment.deployment import deploy, with_costs
from edgespec.runtime.deployment.device_names import cpu_engines
from edgespec.runtime.deployment.options import LoadOptions
from edgespec.runtime.deployment.resolve import LEAST_CONTEXT
from edgespec.runtime.deployment.selection import Candidate
from edgespec.runtime.engines import CPU_ENGINES, StageFile, common_shapes, engine
from edgespec.runtime.engines.cpu.openvino import OpenVinoCpu
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.stage_files import suited
from edgespec.runtime.shapes import ROW_BUCKETS
from edgespec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgespec.bundle import Bundle

_WARM_UP = 2  # rounds
_TREE_ROWS = 8  # of the verification that the bar is about
_BAR = 1.9

Times = dict[str, dict[int, float]]


class _OpenVinoIn(OpenVinoCpu):
    """OpenVINO with a given arithmetic precision, without quantized activations."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        self.name = f"openvino:cpu, {precision}"
        self.precision = precision

    def _config(self, stage: StageFile, threads: int) -> dict[str, str]:
        return super()._config(stage, threads) | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


def main() -> None:
    arguments = _parse_arguments()
    bundle = bundles.load(arguments.bundle)
    text = Tokenizer.from_folder(bundle.path).encode("\n\n".join(PYTHON))
    tokens = list(islice(cycle(text), arguments.lengths[-1] + arguments.rows[-1]))
    runners = _runners(bundle, arguments)
    times: dict[int, Times] = {}
    for length in arguments.lengths:
        for runner in runners.values():
            runner.prefill(tokens[runner.length : length])
        times[length] = _measure(runners, tokens, arguments)
        print(f"\nbehind {length} rows\n")
        _print_times(times[length], arguments.rows)
    picks = {} if arguments.device else _picks(bundle, arguments, times[arguments.lengths[0]])
    role = bundle.manifest.roles[arguments.role]
    print_result(
        "verification_cost",
        {
            "bundle": bundle.manifest.provenance,
            "role": arguments.role,
            "parameters": role.parameters,
            "precision": role.precision.weights,
            "lengths": arguments.lengths,
            "threads": arguments.threads,
            "rounds": arguments.rounds,
            "milliseconds": times,
            **picks,
        },
    )


def _picks(bundle: Bundle, arguments: argparse.Namespace, times: Times) -> dict[str, object]:
    """Returns which engines the device `cpu` selects, and what that costs."""
    picked = {rows: _picked(bundle, arguments, rows) for rows in (1, _TREE_ROWS)}
    fastest = min(times[name][1] for name in CPU_ENGINES if name in times)
    bar = round(times[picked[_TREE_ROWS]][_TREE_ROWS] / fastest, 2)
    print(f"\ncpu picks {picked[1]} for 1 row and {picked[_TREE_ROWS]} for {_TREE_ROWS} rows")
    print(f"T({_TREE_ROWS}) picked / fastest T(1): {bar} (wanted: at most {_BAR})")
    return {"picked": picked, "picked_t8_to_fastest_t1": bar}


def _picked(bundle: Bundle, arguments: argparse.Namespace, rows: int) -> str:
    """Returns the engine that the device `cpu` selects for calls of this many rows."""
    draft = "model" if arguments.role == DRAFT else "none"
    options = LoadOptions(draft=draft, threads=arguments.threads)
    found = with_costs(deploy(bundle, options), always=True).roles[arguments.role].candidates

    def seconds(candidate: Candidate) -> float:
        assert candidate.profile is not None
        curve = candidate.profile.curve(common_shapes(candidate.engines))
        return curve.seconds(rows, LEAST_CONTEXT)

    return min(found, key=seconds).device


def _runners(bundle: Bundle, arguments: argparse.Namespace) -> dict[str, Runner]:
    """Returns the role on every engine, by the engine's name."""
    named = [engine(name) for name in arguments.device]
    engines = suited(bundle.manifest.roles[arguments.role], named or cpu_engines())
    if arguments.precisions:
        engines += [_OpenVinoIn("f32"), _OpenVinoIn("bf16")]
    models = [Model.load(bundle, arguments.role, each, arguments.threads) for each in engines]
    return {each.name: Runner(model) for each, model in zip(engines, models, strict=True)}


def _measure(
    runners: dict[str, Runner], tokens: Sequence[int], arguments: argparse.Namespace
) -> Times:
    """Returns median milliseconds of a verification by engine and rows."""
    samples: dict[tuple[str, int], list[float]] = defaultdict(list)
    batches = [Rows.chain(tokens[-n:]) for n in arguments.rows]
    for turn in range(_WARM_UP + arguments.rounds):
        for rows in batches:
            for name, runner in runners.items():
                begin = time.perf_counter()
                runner.verify(rows)
                if turn >= _WARM_UP:
                    samples[name, len(rows.tokens)].append(time.perf_counter() - begin)
    times: Times = defaultdict(dict)
    for (name, n), seconds in samples.items():
        times[name][n] = round(median(seconds) * 1e3, 2)
    return dict(times)


def _print_times(times: Times, rows: Sequence[int]) -> None:
    header = ["engine", *(f"T({n}) ms" for n in rows), *(f"T({n})/T(1)" for n in rows[1:])]
    print_table(
        header,
        [
            [name, *(of[n] for n in rows), *(round(of[n] / of[1], 2) for n in rows[1:])]
            for name, of in times.items()
        ],
    )
    (first, base), *others = times.items()
    for name, of in others:
        ratios = ", ".join(f"T({n}) {of[n] / base[n]:.2f}" for n in rows)
        print(f"\n{name} / {first}: {ratios}")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The cost of verifying n rows on each engine.")
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument("--role", default=bundles.TARGET, choices=(bundles.TARGET, bundles.DRAFT))
    parser.add_argument("--rows", type=counts, default=[1, 2, 4, 8, 16], help="such as 1,2,4,8")
    parser.add_argument(
        "--lengths",
        "--context",
        type=counts,
        default=[256],
        help="rows in the cache, such as 256,4096 (default 256)",
    )
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="NAME",
        help="such as openvino:cpu; several times for several (default: the engines of cpu)",
    )
    parser.add_argument(
        "--rounds", type=count, default=20, help="repeats; the median is reported (default 20)"
    )
    parser.add_argument(
        "--precisions", action="store_true", help="also measure OpenVINO's other precisions"
    )
    add_threads(parser)
    arguments = parser.parse_args()
    arguments.lengths = sorted(set(arguments.lengths))
    arguments.rows = sorted({1, _TREE_ROWS, *arguments.rows})
    if arguments.rows[-1] > ROW_BUCKETS[-1]:
        parser.error(f"--rows {arguments.rows[-1]}: a call has at most {ROW_BUCKETS[-1]}")
    return arguments


if __name__ == "__main__":
    sys.exit(exit_code(main))
