"""Compares the search for skip sets with random sets and early exits.

    python benchmarks/skip_search.py CHECKPOINT --evaluations 60

All sets are scored in the same way: predicted tokens per second, from agreement on held-out text
and from measured costs. Random sets are as many as the search may try, from the same space. All
early exits are tried.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import add_threads, count, exit_code, print_result, print_table

from edgespec.export import PRECISIONS, ExportOptions, export_bundle
from edgespec.export.skipping.search import Problem, Tried, exits, random_set, ranked, search
from edgespec.tuning.skip_trials import Evaluator
from edgespec.tuning.skipping import LayerSkipSearch, SearchOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from edgespec.bundle import SkipSet
    from edgespec.export.skipping.sets import Trial


@dataclass(frozen=True)
class Line:
    """The best set that one method has found.

    Attributes:
        seed: seed of the search or of the random sets.
        tried: number of tried sets.
        seconds: seconds of trying them, including the search itself.
        searched: predicted tokens per second on the text on which it was chosen.
        greedy: predicted tokens per second on other greedy text.
        sampled: predicted tokens per second on other sampled text.
        tokens_per_second: predicted tokens per second on both together.
    """

    way: str
    seed: int
    left_out: str
    tried: int
    seconds: float
    draft_cost: float
    searched: float
    greedy: float
    sampled: float
    tokens_per_second: float


def main() -> None:
    arguments = _parse_arguments()
    comparison = _Comparison(arguments)
    with tempfile.TemporaryDirectory() as folder:
        export_bundle(
            arguments.checkpoint,
            Path(folder) / "bundle",
            options=ExportOptions(arguments.precision),
            skip_search=comparison,
        )
    lines = [asdict(line) for line in comparison.lines]
    print_table([*lines[0], "to random"], [_row(line, lines) for line in lines])
    print(f"\nplain decoding: {comparison.plain:.1f} tokens/s on {comparison.engine}")
    print_result(
        "skip_search",
        {
            "checkpoint": arguments.checkpoint.name,
            "precision": arguments.precision,
            "threads": arguments.threads,
            "engine": comparison.engine,
            "plain_tokens_per_second": comparison.plain,
            "call_microseconds": round(comparison.call * 1e6, 1),
            "judged_tokens": comparison.judged,
            "lines": lines,
        },
    )


class _Comparison:
    """Runs in place of the search during an export; compares methods and returns no sets."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self.lines: list[Line] = []

    def __call__(self, trial: Trial, given: tuple[SkipSet, ...]) -> tuple[SkipSet, ...]:
        arguments = self._arguments
        options = SearchOptions(
            calibration=arguments.calibration, pieces=arguments.pieces, threads=arguments.threads,
            engine=arguments.device, budget=arguments.budget,
        )  # fmt: skip
        setting = LayerSkipSearch(options)
        costs = setting.probe(trial)
        self._layout = costs.layout
        self.engine, self.plain, self.call = setting.engine.name, 1 / costs.plain(0), costs.call
        evaluator = Evaluator(trial.gated, setting.engine, arguments.threads)
        text = setting.trial_text(trial, evaluator, costs)
        judge, self._held_out = (
            setting.problem(trial, evaluator, costs, part)
            for part in (text.searched, text.held_out)
        )
        self.judged = sum(map(len, judge.evaluate((2,)).all))
        for seed in range(arguments.seeds):
            begin = time.perf_counter()
            found = search(judge, arguments.evaluations, seed)
            self._note("search", seed, found, begin)
            begin = time.perf_counter()
            rng = np.random.default_rng(seed + 1000)
            sets = [random_set(costs, rng) for _ in range(arguments.evaluations)]
            self._note("random", seed, _tried(judge, sets), begin)
        begin = time.perf_counter()
        self._note("early exit", 0, _tried(judge, exits(costs)), begin)
        return given

    def _note(self, way: str, seed: int, tried: Sequence[Tried], begin: float) -> None:
        seconds, best = time.perf_counter() - begin, tried[0]
        score = self._held_out.trial(best.skipped).score
        self.lines.append(
            Line(
                way, seed, self._layout.describe(best.skipped), len(tried), round(seconds, 1),
                score.draft_cost, round(best.score.tokens_per_second, 3),
                score.greedy.tokens_per_second, score.sampled.tokens_per_second,
                round(score.tokens_per_second, 3),
            )
        )  # fmt: skip


def _tried(problem: Problem, sets: Iterable[tuple[int, ...]]) -> list[Tried]:
    return ranked(map(problem.trial, sets))


def _row(line: dict[str, object], lines: list[dict[str, object]]) -> list[object]:
    """Returns a table row with the ratio to the random sets of the same seed."""
    [random] = [each for each in lines if (each["way"], each["seed"]) == ("random", line["seed"])]
    ratio = float(str(line["tokens_per_second"])) / float(str(random["tokens_per_second"]))
    return [*line.values(), round(ratio, 3)]


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--precision", choices=PRECISIONS, default="int4")
    parser.add_argument("--device", default="cpu", help="engine (default: the faster one)")
    parser.add_argument("--calibration", type=Path, metavar="FILE")
    parser.add_argument("--evaluations", type=count, default=60, metavar="N")
    parser.add_argument("--seeds", type=count, default=3, metavar="N")
    parser.add_argument("--pieces", type=count, metavar="N", help="pieces of text, 128 tokens each")
    parser.add_argument(
        "--budget", type=float, default=60, help="seconds for which the amount of text is chosen"
    )
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
