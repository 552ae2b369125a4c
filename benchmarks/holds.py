r"""Measures how long no other thread runs, while a model is loaded and used: a window stands still.

    python benchmarks/holds.py MODEL [--repeat 5]

A thread that wants to run every 2 ms looks at the clock. The longest time between two of its turns
is told for loading, for the first text, for the first one under a JSON schema, and for closing; of
several processes the least, since others on the machine take the processor, too. What is imported
by `LLM(...)` counts to loading.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time

from common import exit_code, print_result, print_table

_TICK = 0.002
_SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("model")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        print(json.dumps(_holds(given.model)))
        return
    command = [sys.executable, __file__, given.model, "--once"]
    runs = [
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        for _ in range(given.repeat)
    ]
    least = {step: round(min(run[step] for run in runs) * 1000) for step in runs[0]}
    print_table(["step", "longest hold, ms"], [*least.items()])
    print_result("holds", {"ms": least})


class _Raw(argparse.RawDescriptionHelpFormatter):
    pass


def _holds(model: str) -> dict[str, float]:
    """Returns the longest times between two turns of another thread, in seconds, by step."""
    from edgespec import LLM

    clock = _Clock()
    llm = LLM(model)
    found = {"load": clock.longest()}
    llm.generate("The", max_new_tokens=8)
    found["first text"] = clock.longest()
    llm.generate("The", max_new_tokens=8, json_schema=_SCHEMA)
    found["first text under a schema"] = clock.longest()
    llm.close()
    found["close"] = clock.longest()
    return found


class _Clock:
    """A thread that notes how late its turns come."""

    def __init__(self) -> None:
        self._most = 0.0
        threading.Thread(target=self._tick, daemon=True).start()

    def _tick(self) -> None:
        last = time.perf_counter()
        while True:
            time.sleep(_TICK)
            now = time.perf_counter()
            self._most = max(self._most, now - last - _TICK)
            last = now

    def longest(self) -> float:
        """Returns the longest hold since the last call."""
        time.sleep(5 * _TICK)
        found = self._most
        self._most = 0.0
        return found


if __name__ == "__main__":
    sys.exit(exit_code(main))
