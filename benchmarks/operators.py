"""Measures the time of each operator in a verification pass, on each engine.

    python benchmarks/operators.py BUNDLE --rows 8 --context 256
    python benchmarks/operators.py BUNDLE --rows 1 --texts 8 --context 256

The times come from the engines' profilers. Passes with and without a profiler take turns, so that
the profiler's cost is visible. "no operator" is the rest of a pass: the engine's scheduling and the
call from Python.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from common import add_threads, count, exit_code, print_result, print_table
from texts import facts_of

from edgespec import bundle as bundles
from edgespec.errors import InputError
from edgespec.measuring.prompts import PYTHON
from edgespec.runtime.engines import CHANGING_CPU_ENGINES, CPU_ENGINES, engine, ort_session
from edgespec.runtime.engines.cpu import onnxruntime, openvino
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.joint import JointPasses
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from edgespec.bundle import Bundle

_WARM_UP = 3  # passes
_WANTED = 20  # per cent of a pass outside the quantized products, at most
_QUANTIZED = ("MatMulNBits", "MatMulInteger", "FullyConnectedCompressed")
"""The engines' names for a product with quantized weights."""

_OPENVINO = (openvino.OpenVinoCpu.name, openvino.OpenVinoCpuBfloat16.name)

Costs = dict[str, tuple[int, float]]
"""Operators of a pass, and their seconds, by type."""


@dataclass(frozen=True)
class Pass:
    """A verification pass on one engine.

    Attributes:
        engine: Name of the engine.
        ms: Mean milliseconds of a pass without profiling.
        profiled_ms: Mean milliseconds with profiling, of which operators are shares.
        outside_percent: Share of the profiled pass that is not in quantized products, in percent.
        operators: Number and milliseconds of each operator type, the most expensive first.
    """

    engine: str
    ms: float
    profiled_ms: float
    outside_percent: float
    operators: dict[str, tuple[int, float]]


def main() -> None:
    arguments = _parse_arguments()
    bundle = bundles.load(arguments.bundle)
    passes = [_measure(bundle, name, arguments) for name in arguments.engines]
    for each in passes:
        print(f"\n{each.engine}: {each.ms} ms, with the profiler {each.profiled_ms} ms\n")
        print_table(["operator", "number", "ms", "%"], list(_lines(each)))
        print(
            f"\n{each.outside_percent:.0f} % outside the products with quantized weights "
            f"(wanted: at most {_WANTED} %)"
        )
    names = ("rows", "texts", "context", "rounds", "threads")
    facts = {name: getattr(arguments, name) for name in names}
    print_result(
        "operators", {**facts_of(arguments.bundle), **facts, "passes": list(map(asdict, passes))}
    )


def _measure(bundle: Bundle, name: str, arguments: argparse.Namespace) -> Pass:
    rows = Rows.chain(Tokenizer.from_folder(bundle.path).encode("".join(PYTHON))[: arguments.rows])
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        models = {False: Model.load(bundle, bundles.TARGET, engine(name), arguments.threads)}
        with _profiled(Path(folder)):
            models[True] = Model.load(bundle, bundles.TARGET, engine(name), arguments.threads)
        runs = {
            with_profiler: _passes(model, rows, arguments)
            for with_profiler, model in models.items()
        }
        before: Costs = {}
        for turn in range(_WARM_UP + arguments.rounds):
            if turn == _WARM_UP and name in _OPENVINO:
                before = _openvino_costs(models[True], _WARM_UP)
            for with_profiler, run in runs.items():
                begin = time.perf_counter()
                run()
                if turn >= _WARM_UP:
                    seconds[with_profiler].append(time.perf_counter() - begin)
        if before:
            after = _openvino_costs(models[True], _WARM_UP + arguments.rounds)
            warm = {kind: taken for kind, (_, taken) in before.items()}
            # What took no time at first is not in `before`.
            costs = {kind: (n, taken - warm.get(kind, 0.0)) for kind, (n, taken) in after.items()}
        else:
            costs = _onnxruntime_costs(models[True], arguments.rounds)
    of_one = {kind: (n, taken / arguments.rounds) for kind, (n, taken) in costs.items()}
    return summary(name, fmean(seconds[False]), fmean(seconds[True]), of_one)


def _passes(model: Model, rows: Rows, arguments: argparse.Namespace) -> Callable[[], object]:
    """Returns what makes a pass over these rows of each text."""
    runners = [Runner(model) for _ in range(arguments.texts)]
    for runner in runners:
        runner.skip(arguments.context)  # OpenVINO would count passes over a prompt, too
    if len(runners) == 1:
        return lambda: runners[0].verify(rows)
    if not model.can_join_texts:
        raise InputError(f"--texts {arguments.texts}: {model.device} takes one text at a time")
    model.joins_texts = True  # without the trial of exactness, whose calls OpenVINO would count
    shared = JointPasses(model)
    return lambda: list(shared.verify([(runner, rows) for runner in runners]))


def summary(name: str, plain: float, profiled: float, costs: Costs) -> Pass:
    """Summarizes the seconds of passes without and with the profiler, and of their operators."""
    products = sum(costs[kind][1] for kind in _QUANTIZED if kind in costs)
    dearest = sorted(costs.items(), key=lambda item: -item[1][1])
    return Pass(
        name,
        round(plain * 1e3, 2),
        round(profiled * 1e3, 2),
        round(100 * (1 - products / profiled), 1),
        {kind: (number, round(taken * 1e3, 3)) for kind, (number, taken) in dearest},
    )


def _lines(each: Pass) -> Iterator[list[object]]:
    for kind, (number, ms) in each.operators.items():
        yield [kind, number, round(ms, 2), round(100 * ms / each.profiled_ms, 1)]
    rest = each.profiled_ms - sum(ms for _, ms in each.operators.values())
    yield ["no operator", 0, round(rest, 2), round(100 * rest / each.profiled_ms, 1)]


@contextmanager
def _profiled(folder: Path) -> Iterator[None]:
    """Lets both engines compile with their profilers switched on."""
    compile_for, session_options = openvino.compile_for, ort_session.session_options

    def openvino_profiled(device: str, stage: Any, config: Mapping[str, str], *shapes: Any) -> Any:
        return compile_for(device, stage, {**config, "PERF_COUNT": "YES"}, *shapes)

    def onnxruntime_profiled(threads: int) -> Any:
        options = session_options(threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        return options

    with (
        patch.object(openvino, "compile_for", openvino_profiled),
        patch.object(onnxruntime, "session_options", onnxruntime_profiled),
    ):
        yield


def _openvino_costs(model: Model, passes: int) -> Costs:
    """Returns the operators of all passes so far; the profiler reports their mean times."""
    costs: Costs = defaultdict(lambda: (0, 0.0))
    for executable in model.executables:
        for node in executable._request.get_profiling_info():  # type: ignore[attr-defined]
            if node.status == node.Status.EXECUTED:
                _add(costs, node.node_type, node.real_time.total_seconds() * passes)
    return dict(costs)


def _onnxruntime_costs(model: Model, passes: int) -> Costs:
    """Returns the operators of the last passes, and ends the profiling."""
    costs: Costs = defaultdict(lambda: (0, 0.0))
    for executable in model.executables:
        file = Path(executable._session.end_profiling())  # type: ignore[attr-defined]
        for kind, (number, seconds) in last_passes(json.loads(file.read_text()), passes).items():
            _add(costs, kind, seconds, number)
    return dict(costs)


def last_passes(events: list[dict[str, Any]], passes: int) -> Costs:
    """Returns the operators of a pass, and their seconds in the last passes of a profile."""
    runs = [event for event in events if event["name"] == "model_run"][-passes:]
    costs: Costs = defaultdict(lambda: (0, 0.0))
    for event in events:
        if event["name"].endswith("_kernel_time") and event["ts"] >= runs[0]["ts"]:
            _add(costs, event["args"]["op_name"], event["dur"] / 1e6)
    return {kind: (number // passes, seconds) for kind, (number, seconds) in costs.items()}


def _add(costs: Costs, kind: str, seconds: float, number: int = 1) -> None:
    others, before = costs[kind]
    costs[kind] = (others + number, before + seconds)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A verification pass by operator.")
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument("--rows", type=count, default=8, help="rows of a text (default 8)")
    parser.add_argument("--texts", type=count, default=1, help="texts of a pass (default 1)")
    parser.add_argument(
        "--context", type=count, default=256, help="rows in the cache (default 256)"
    )
    parser.add_argument(
        "--rounds", type=count, default=20, help="repeats; the mean is reported (default 20)"
    )
    parser.add_argument(
        "--engines",
        nargs="+",
        choices=(*CPU_ENGINES, *CHANGING_CPU_ENGINES),
        default=CPU_ENGINES,
        help=f"default: {' and '.join(CPU_ENGINES)}",
    )
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
