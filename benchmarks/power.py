r"""Measures what a token costs by threads, drafts and pauses: what a battery would ask.

    python benchmarks/power.py smollm2-135m.gguf --threads 1,2 --pace 8

Each way makes the same texts, in turns: with so many threads, without and with drafts, as fast as
it can and at reading speed, for which it waits between passes. Prints processor milliseconds a
token behind the first, and joules where the processor tells them (RAPL). Medians of all texts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from common import count, counts, exit_code, print_result, print_table
from peers import energy, joules_since

from edgespec import LLM
from edgespec.measuring.prompts import PYTHON
from edgespec.runtime.speculation.generation import Round

DRAFTS = ("none", "auto")


@dataclass(frozen=True)
class Cost:
    """What a token of a text cost, behind the first.

    Attributes:
        cpu_ms: processor time, in milliseconds.
        rate: tokens a second by the clock.
        joules: those of all processors; None: they don't tell.
    """

    cpu_ms: float
    rate: float
    joules: float | None


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=counts, default=[1, 2], help="(default 1,2)")
    parser.add_argument("--pace", type=count, default=8, help="tokens/s of a reader (default 8)")
    parser.add_argument("-n", type=count, default=32, help="new tokens of a text (default 32)")
    parser.add_argument("--repeat", type=count, default=2, help="of each text (default 2)")
    given = parser.parse_args()
    costs = defaultdict[tuple[int, str, int], list[Cost]](list)
    with ExitStack() as stack:
        models = {
            threads: stack.enter_context(LLM(given.model, threads=threads))
            for threads in given.threads
        }
        for llm in models.values():
            llm.warm_up()
        for prompt in PYTHON[:4] * given.repeat:
            for pace in (0, given.pace):
                for threads, llm in models.items():
                    for draft in DRAFTS:
                        costs[threads, draft, pace].append(cost(llm, prompt, draft, pace, given.n))
    rows = [(*way, *_middle(each)) for way, each in costs.items()]
    header = ("threads", "drafts", "paced to", "processor ms a token", "tokens/s", "joules a token")
    print_table(header, rows)
    found = [dict(zip(header, row, strict=True)) for row in rows]
    print_result("power", {"model": given.model.name, "ways": found})


def cost(llm: LLM, prompt: str, draft: str, pace: int, tokens: int) -> Cost:
    """Makes a text, as if it were the first, and returns what its tokens cost.

    Args:
        llm: the model.
        prompt: the text before.
        draft: source of drafts.
        pace: tokens a second, for which it waits between passes; 0: it doesn't.
        tokens: how many.
    """
    llm.forget()
    made = 0
    counters = energy()
    began = time.perf_counter()
    spent = time.process_time()
    for event in llm.stream(prompt, max_new_tokens=tokens, draft_source=draft).events():
        if not isinstance(event, Round) or not event.tokens:
            continue
        if not made:  # what the prompt cost is no part of it
            counters = energy()
            began = time.perf_counter()
            spent = time.process_time()
        made += len(event.tokens)
        if pace:
            time.sleep(max(0.0, began + made / pace - time.perf_counter()))
    joules = joules_since(counters)
    rest = max(1, made - 1)
    return Cost(
        cpu_ms=1e3 * (time.process_time() - spent) / rest,
        rate=rest / (time.perf_counter() - began),
        joules=None if joules is None else joules / rest,
    )


def _middle(costs: list[Cost]) -> tuple[str, str, str]:
    joules = [each.joules for each in costs if each.joules is not None]
    return (
        f"{median(each.cpu_ms for each in costs):.1f}",
        f"{median(each.rate for each in costs):.1f}",
        f"{median(joules):.2f}" if joules else "-",
    )


if __name__ == "__main__":
    sys.exit(exit_code(main))
