"""Compares what one text's passes cost in the graph for several texts and in the one for a text.

    python benchmarks/texts_graph.py qwen-bundle --rows 1,2,4,8 --length 200

Engines whose calls may hold several texts have only the graph for several loaded, so that weights
are in memory once. A single text must not pay for that. Both graphs are loaded here, by turns.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from common import add_threads, count, counts, exit_code, print_result, print_table
from texts import facts_of
from turns import Turns

from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.errors import InputError
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.execution import exactness
from edgespec.runtime.execution.runner import Runner


def main() -> None:
    arguments = _parse_arguments()
    whole = bundles.load(arguments.bundle)
    if not whole.target.stages_of_texts:
        raise InputError(f"{whole.path} has no graph for several texts: export it again")
    roles = {**whole.manifest.roles, TARGET: replace(whole.target, stages_of_texts=())}
    alone = replace(whole, manifest=replace(whole.manifest, roles=roles))
    engines = (engine(arguments.device),) * len(whole.target.stages)
    runners = []
    for each in (alone, whole):
        runners.append(Runner(exactness.load(each, TARGET, engines, arguments.threads)))
        runners[-1].skip(arguments.length)
    turns = Turns(runners, arguments.rows, arguments.rounds)
    table = [
        [rows, turns.ms(rows, 0), turns.ms(rows, 1), turns.ratio(rows, 1)]
        for rows in arguments.rows
    ]
    print_table(["rows", "graph for one text, ms", "for several, ms", "ratio"], table)
    print_result(
        "texts_graph",
        {
            **facts_of(arguments.bundle), "device": arguments.device, "length": arguments.length,
            "threads": arguments.threads, "rounds": arguments.rounds, "table": table,
        },
    )  # fmt: skip


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The graph for several texts with one text.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rows", type=counts, default=[1, 2, 4, 8], help="rows of a pass")
    parser.add_argument("--length", type=count, default=200, help="rows before a timed pass")
    parser.add_argument("--rounds", type=count, default=21)
    parser.add_argument("--device", choices=CPU_ENGINES, default="openvino:cpu")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
