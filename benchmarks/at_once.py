"""Compares the speed of several texts at once with that of the same texts one after the other.

    python benchmarks/at_once.py BUNDLE --prompts HumanEval.jsonl --texts 1,8

Greedy texts of one loaded model; prompts are part of all figures, and nothing is known from before.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from common import add_threads, count, counts, exit_code, facts_of, print_result, print_table

from edgespec import LLM
from edgespec.api.loading import DRAFTS
from edgespec.measuring.prompts import read_prompts


def main() -> None:
    arguments = _parse_arguments()
    rows = list[list[object]]()
    most, options = max(arguments.texts), {"max_new_tokens": arguments.new_tokens}
    with LLM(
        arguments.bundle, draft=arguments.draft, threads=arguments.threads, sessions=most
    ) as llm:
        prompts = read_prompts(arguments.prompts, most)
        llm.generate(prompts[:1], max_new_tokens=4)  # warms up
        for texts in arguments.texts:
            some, times = prompts[:texts], list[float]()
            for ways in ([[each] for each in some], [some]):
                llm.forget()
                begin = time.perf_counter()
                made = [result for part in ways for result in llm.generate(part, **options)]
                times.append(sum(each.new_tokens for each in made) / (time.perf_counter() - begin))
            one, together = (round(each, 1) for each in times)
            rows.append([len(some), one, together, round(times[1] / times[0], 2)])
            print(rows[-1], file=sys.stderr, flush=True)
    print_table(["texts", "one after the other, tokens/s", "at once, tokens/s", "ratio"], rows)
    settings = {"draft": arguments.draft, "threads": arguments.threads, **options}
    print_result("at_once", {**facts_of(arguments.bundle), **settings, "rows": rows})


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Several texts at once, and one by one.")
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument("--prompts", type=Path, nargs="+", default=(), help="JSON lines")
    parser.add_argument("--texts", type=counts, default=[1, 8], help="numbers of texts (1,8)")
    parser.add_argument("--new-tokens", type=count, default=48, help="of each text (default 48)")
    parser.add_argument("--draft", choices=DRAFTS, default="none")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
