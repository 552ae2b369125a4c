"""Compares the tokens per second of each draft source with plain decoding.

    python benchmarks/speculation.py BUNDLE --temperature 0 0.8

Plain decoding runs on each engine, the draft sources on the device `cpu` with default options.
Every text is compared with that of plain decoding on the same engine (`texts.compare`).
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from common import add_threads, count, exit_code, print_result, print_table
from texts import (
    Request,
    Results,
    Setting,
    compare,
    facts_of,
    further,
    make_texts,
    settings_of,
)

from edgespec.api.loading import DEFAULT_TREE_WIDTH, DRAFTS
from edgespec.measuring.equality import tally
from edgespec.measuring.prompts import read_prompts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgespec.api.result import GenerationResult

_BAR = 1.4  # of the draft model against the fastest plain decoding


@dataclass(frozen=True)
class Measured:
    """One line of the table; tokens per second are the median over repeats."""

    temperature: float
    draft: str
    engine: str
    tokens_per_second: float
    to_fastest_plain: float
    ttft_ms: float
    mean_accepted_length: float
    equal: str


def main() -> None:
    arguments = _parse_arguments()
    prompts = read_prompts(arguments.prompts, arguments.limit)
    size = arguments.num_draft_tokens, arguments.tree_width
    drafts = [(draft, *size) for draft in arguments.draft]
    settings = settings_of(arguments.bundle, arguments.threads, drafts)
    # The seed is the number of the repeat: sampled texts differ from repeat to repeat.
    requests = [
        Request(prompt, temperature, repeat, arguments.new_tokens)
        for repeat in range(arguments.repeat)
        for temperature in arguments.temperature
        for prompt in prompts
    ]
    results = make_texts(settings, requests)
    verdicts = compare(results)
    lines = [
        line
        for temperature in arguments.temperature
        for line in _summary(results, verdicts, temperature)
    ]
    print_table(
        ["T", "draft", "engine", "tokens/s", "to plain", "TTFT ms", "accepted", "equal"],
        [list(asdict(line).values()) for line in lines],
    )
    for line in lines:
        if line.draft == "model":
            print(
                f"\nT={line.temperature:g}: the draft model gives {line.to_fastest_plain} times "
                f"the fastest plain decoding (wanted: at least {_BAR})"
            )
    print_result(
        "speculation",
        {
            **facts_of(arguments.bundle),
            "threads": arguments.threads,
            "new_tokens": arguments.new_tokens,
            "num_draft_tokens": arguments.num_draft_tokens,
            "tree_width": arguments.tree_width,
            "prompts": len(prompts),
            "repeats": arguments.repeat,
            "lines": [asdict(line) for line in lines],
        },
    )


def _summary(
    results: Results, verdicts: dict[Setting, dict[Request, str]], temperature: float
) -> Iterator[Measured]:
    of = {
        setting: {r: result for r, result in texts.items() if r.temperature == temperature}
        for setting, texts in results.items()
    }
    speeds = {setting: _tokens_per_second(texts) for setting, texts in of.items()}
    fastest = max(speed for setting, speed in speeds.items() if setting.loading.draft == "none")
    for setting, texts in of.items():
        tokens, _ = further(texts.values())
        yield Measured(
            temperature,
            setting.loading.draft,
            next(iter(texts.values())).engine,
            round(speeds[setting], 1),
            round(speeds[setting] / fastest, 2),
            round(median(result.ttft_ms for result in texts.values()), 1),
            round(tokens / max(1, sum(result.rounds for result in texts.values())), 2),
            tally(verdicts[setting][request] for request in texts),
        )


def _tokens_per_second(texts: dict[Request, GenerationResult]) -> float:
    """Returns tokens per second without first tokens; the median over repeats."""
    repeats: dict[int, list[GenerationResult]] = defaultdict(list)
    for request, result in texts.items():
        repeats[request.seed].append(result)
    sums = [further(results) for results in repeats.values()]
    return median(tokens / seconds for tokens, seconds in sums if seconds)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Draft sources against plain decoding.")
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument(
        "--prompts", type=Path, nargs="+", default=(), help="JSON lines with prompt or turns"
    )
    parser.add_argument("--limit", type=count, help="number of prompts to use, from the first")
    parser.add_argument(
        "--new-tokens", type=count, default=64, help="tokens of each text (default 64)"
    )
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument(
        "--repeat", type=count, default=3, help="repeats; the median is reported (default 3)"
    )
    parser.add_argument(
        "--draft", nargs="+", choices=DRAFTS, default=["model", "lookup", "recycling", "auto"]
    )
    parser.add_argument("--num-draft-tokens", type=count, help="default: what edgespec chooses")
    parser.add_argument("--tree-width", type=count, default=DEFAULT_TREE_WIDTH)
    add_threads(parser)
    arguments = parser.parse_args()
    if arguments.new_tokens < 2:
        parser.error("--new-tokens 1: the first token is not part of the speed, give 2 or more")
    return arguments


if __name__ == "__main__":
    sys.exit(exit_code(main))
