"""Measures passes of texts of different lengths: all in one, one by one, and as edgespec chooses.

    python benchmarks/mixed_lengths.py BUNDLE --lengths 1200,1200,1200,6000
    python benchmarks/mixed_lengths.py BUNDLE --lengths 1200,6000 --lengths 1200,1200,1200,1200,6000

A shared pass reads the weights once, and as many cache rows of each text as the longest has. Each
text has one row in a pass; the three ways take turns. All lengths must be beyond 1024.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median
from unittest.mock import patch

from common import add_threads, count, counts, exit_code, print_result, print_table
from texts import facts_of

from edgespec import LLM
from edgespec.runtime.execution import joint
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.shapes import BORDER

_ROWS = Rows.chain([5])
_WARM_UP = 2


def main() -> None:
    arguments = _parse_arguments()
    most = max(map(max, arguments.lengths))
    with LLM(
        arguments.bundle, device=arguments.device, draft="none", threads=arguments.threads,
        context=most + 1, sessions=max(map(len, arguments.lengths)), prefix_reuse=False,
    ) as llm:  # fmt: skip
        lines = [_measured(llm.target, each, arguments.rounds) for each in arguments.lengths]
    print_table(
        ["lengths", "all in one, ms", "alone, ms", "as chosen, ms", "passes", "to the best other"],
        [list(line.values()) for line in lines],
    )
    print_result(
        "mixed_lengths",
        {**facts_of(arguments.bundle), "device": arguments.device, "threads": arguments.threads,
         "rounds": arguments.rounds, "lines": lines},
    )  # fmt: skip


def _measured(model: Model, lengths: list[int], rounds: int) -> dict[str, object]:
    """Returns the milliseconds of a round of texts of these lengths, in each way."""
    in_one = patch.object(
        joint, "parts", lambda capacities, _: [max(capacities, default=0)] * len(capacities)
    )
    ways: dict[str, AbstractContextManager[object]] = {
        "one": in_one,
        "alone": nullcontext(),
        "chosen": nullcontext(),
    }
    texts = {way: [Runner(model) for _ in lengths] for way in ways}
    passes = {way: joint.JointPasses(model) for way in ways}
    for runners in texts.values():
        for runner, length in zip(runners, lengths, strict=True):
            runner.skip(length)
    seconds, number = defaultdict[str, list[float]](list), 0
    for turn in range(_WARM_UP + rounds):
        for way in sorted(ways, reverse=bool(turn % 2)):
            within = ways[way]
            begin = time.perf_counter()
            with within:
                if way == "alone":
                    for runner in texts[way]:
                        runner.verify(_ROWS)
                else:
                    number = len(list(passes[way].verify([(each, _ROWS) for each in texts[way]])))
            if turn >= _WARM_UP:
                seconds[way].append(time.perf_counter() - begin)
    ms = {way: round(median(seconds[way]) * 1e3, 1) for way in ways}
    ratio = round(ms["chosen"] / min(ms["one"], ms["alone"]), 2)
    return {"lengths": " ".join(map(str, lengths)), **ms, "passes": number, "ratio": ratio}


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Passes of texts of different lengths.")
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument(
        "--lengths", type=counts, action="append", required=True,
        help="rows of each text, such as 1200,6000; several times for several rounds",
    )  # fmt: skip
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=count, default=10, help="repeats (default 10)")
    add_threads(parser)
    arguments = parser.parse_args()
    if min(map(min, arguments.lengths)) < BORDER:
        parser.error(f"--lengths: all must be at least {BORDER}")
    return arguments


if __name__ == "__main__":
    sys.exit(exit_code(main))
