r"""Measures texts beside a busy program: with one thread, with all, and with as many as it leaves.

    python benchmarks/busy_cores.py qwen-coder-0.5b.gguf --busy 0,50,100 --draft auto

The program is busy for so many per cent of each 20 ms. The last way is what edgespec does, see
`ThreadLimit`. All ways take turns, text by text; medians of milliseconds a token behind the first.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from unittest import mock

from common import busy_program, count, exit_code, print_result, print_table, with_all_threads

from edgespec import LLM
from edgespec.measuring.prompts import PYTHON
from edgespec.runtime.engines import native
from edgespec.runtime.engines.native import ThreadLimit
from edgespec.runtime.kernels import use_threads
from edgespec.system.machine import default_threads

_FOLLOWS = "follows"


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", default="none", help="source of drafts (default none)")
    parser.add_argument(
        "--busy", type=_shares, default=[0, 50, 100], help="per cent (default 0,50,100)"
    )
    parser.add_argument("-n", type=count, default=48, help="new tokens of a text (default 48)")
    parser.add_argument("--repeat", type=count, default=4, help="of each way (default 4)")
    parser.add_argument("--threads", type=count, help="threads (default: those of edgespec)")
    given = parser.parse_args()
    every = given.threads or default_threads()
    ways = {"1": 1, str(every): every, _FOLLOWS: None}
    rows = list[list[object]]()
    with LLM(given.model, draft=given.draft, threads=every) as llm:
        llm.warm_up()
        for busy in given.busy:
            found = defaultdict[str, list[float]](list)
            with busy_program(busy / 100):
                for number in range(given.repeat):
                    for name, threads in ways.items():
                        text = PYTHON[number % len(PYTHON)]
                        found[name].append(milliseconds(llm, text, given.n, threads, every))
            rows.append([busy, *(f"{median(found[name]):.1f}" for name in ways)])
    print_table(["busy, per cent", *(f"threads: {name}" for name in ways)], rows)
    print_result("busy_cores", {"model": given.model.name, "draft": given.draft, "rows": rows})


def milliseconds(llm: LLM, prompt: str, tokens: int, threads: int | None, every: int) -> float:
    """Makes a text as if it were the first; returns milliseconds a token behind the first.

    Args:
        llm: the model.
        prompt: the text before.
        tokens: how many.
        threads: how many compute; None: as many as other programs leave.
        every: how many threads there are, with which a text begins that takes as many as are left.
    """
    llm.forget()
    use_threads(threads or every)
    follows = mock.patch.object(native, "_LIMIT", ThreadLimit())
    with follows if threads is None else with_all_threads():
        return llm.generate(prompt, max_new_tokens=tokens).tpot_ms


def _shares(text: str) -> list[int]:
    """Parses per cent, separated by commas."""
    parts = text.split(",")
    if not all(each.isdecimal() and int(each) <= 100 for each in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not per cent, such as 0,50,100")
    return [int(each) for each in parts]


if __name__ == "__main__":
    sys.exit(exit_code(main))
