"""Measures the time to the first token: after a long prompt, and from the start of the process.

    python benchmarks/first_token.py BUNDLE --prompt-tokens 1024

The cold start is `edgespec run` in a new process, from its start to the first character, with the
bundle and the engines' caches on a warm disk: the first run is not counted. The time to first token
is that of a loaded bundle behind `LLM.warm_up`, which is timed twice: the first arranges weights.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from common import add_threads, count, exit_code, print_result, print_table
from texts import facts_of

from edgespec import LLM
from edgespec.api.loading import DRAFTS
from edgespec.errors import DeviceError
from edgespec.measuring.prompts import PYTHON

_COLD_WANTED = 3.0  # seconds


def main() -> None:
    arguments = _parse_arguments()
    cold = [_cold_start(arguments) for _ in range(1 + arguments.repeat)][1:]
    ttft, warm_ups, engine = _time_to_first_token(arguments)
    print_table(
        ["", "median", "least", "most"],
        [
            ["cold start, s", *_spread(cold, 1, 2)],
            [f"TTFT of {arguments.prompt_tokens} tokens, ms", *_spread(ttft, 1e3, 1)],
        ],
    )
    first, second = (round(each * 1e3, 1) for each in warm_ups)
    print(f"\nthe first call of the models takes {first} ms, the second {second} ms")
    print(f"cold start wanted: at most {_COLD_WANTED:g} s at 1.1 B; the target is on {engine}")
    print_result(
        "first_token",
        {
            **facts_of(arguments.bundle),
            "draft": arguments.draft,
            "engine": engine,
            "threads": arguments.threads,
            "prompt_tokens": arguments.prompt_tokens,
            "repeats": arguments.repeat,
            "cold_start_seconds": _spread(cold, 1, 3),
            "ttft_ms": _spread(ttft, 1e3, 2),
            "warm_up_ms": [first, second],
        },
    )


def _cold_start(arguments: argparse.Namespace) -> float:
    """Returns the seconds until `edgespec run` prints its first character."""
    command = [
        sys.executable, "-m", "edgespec", "run", str(arguments.bundle), PYTHON[0], "-n", "8",
        f"--draft={arguments.draft}", f"--device={arguments.device}",
        f"--threads={arguments.threads}",
    ]  # fmt: skip
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seconds = time.perf_counter() - begin
        process.stdout.read()
    if process.returncode:
        raise DeviceError(f"edgespec run ended with status {process.returncode}: run it by hand")
    return seconds


def _time_to_first_token(
    arguments: argparse.Namespace,
) -> tuple[list[float], list[float], str]:
    """Returns the seconds of each repeat, those of two first calls, and the target's device."""
    llm = LLM(
        arguments.bundle,
        draft=arguments.draft,
        device=arguments.device,
        threads=arguments.threads,
    )
    text = llm.tokenizer.encode("\n\n".join(PYTHON))
    prompt = list(islice(cycle(text), arguments.prompt_tokens))
    seconds, warm_ups = [], []
    for _ in range(2):
        begin = time.perf_counter()
        llm.warm_up()
        warm_ups.append(time.perf_counter() - begin)
    for _ in range(1 + arguments.repeat):
        llm.forget()
        begin = time.perf_counter()
        result = llm.generate(prompt, max_new_tokens=1)
        seconds.append(time.perf_counter() - begin)
    return seconds[1:], warm_ups, result.engine


def _spread(seconds: list[float], factor: float, digits: int) -> tuple[float, float, float]:
    """Returns median, minimum and maximum."""
    middle, least, most = (round(of(seconds) * factor, digits) for of in (median, min, max))
    return middle, least, most


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Cold start, and TTFT behind a long prompt.")
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument(
        "--prompt-tokens", type=count, default=1024, help="tokens of the prompt (default 1024)"
    )
    parser.add_argument("--draft", choices=DRAFTS, default="auto")
    parser.add_argument("--device", default="cpu", help="device of the target (default cpu)")
    parser.add_argument(
        "--repeat", type=count, default=5, help="repeats; the median is reported (default 5)"
    )
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
