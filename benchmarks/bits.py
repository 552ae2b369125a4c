"""Checks on each CPU engine whether a row's logits have the same bits in every call.

    python benchmarks/bits.py BUNDLE ... --positions 200 --start 30,990

Rows of a text are computed one at a time, and again in chunks of three sizes, in random trees of up
to 16 rows of which random parts are accepted, and after a different continuation was discarded. The
text comes with edgespec, in English and Python, and is repeated as often as needed. A start such as
990 lets the text cross position 1024, where the steps between capacities change.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import cycle, islice
from pathlib import Path

from common import add_threads, count, counts, exit_code, print_result, print_table

from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.errors import EdgespecError
from edgespec.measuring.bits import compare_bits
from edgespec.runtime.deployment.device_names import cpu_engines
from edgespec.runtime.execution import exactness
from edgespec.runtime.execution.stage_files import suited
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.tuning.texts import PASSAGES


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    parser.add_argument(
        "--positions", type=count, default=100, help="number of rows after each start"
    )
    parser.add_argument(
        "--start", type=counts, default=[30], help="tokens before the first row, such as 30,990"
    )
    add_threads(parser)
    arguments = parser.parse_args()
    lines: list[dict[str, object]] = []
    table: list[list[object]] = []
    faults = 0
    for path in arguments.bundles:
        bundle = bundles.load(path)
        tokens = Tokenizer.from_folder(path).encode("\n\n".join(PASSAGES))
        for engine in suited(bundle.target, cpu_engines()):
            engines = (engine,) * len(bundle.target.stages)
            model = exactness.load(bundle, TARGET, engines, arguments.threads)
            for start in arguments.start:
                begin = time.perf_counter()
                text = list(islice(cycle(tokens), start + arguments.positions))
                found = compare_bits(model, text, start)
                seconds = time.perf_counter() - begin
                lines.append({
                    "bundle": path.name, "engine": engine.name, "exact": model.exact,
                    "start": start, "rows": found.rows, "differing": found.differing,
                })  # fmt: skip
                faults += found.differing if model.exact else 0
                row = [path.name, engine.name, model.exact, model.shapes.rows[0], start]
                table.append([*row, found.rows, found.differing, round(seconds)])
    headings = ["bundle", "engine", "exact", "least rows", "start", "rows", "differing", "s"]
    print_table(headings, table)
    print_result("bits", {"threads": arguments.threads, "lines": lines})
    if faults:
        raise EdgespecError(f"{faults} rows differ where all were to be alike: please report it")


if __name__ == "__main__":
    sys.exit(exit_code(main))
