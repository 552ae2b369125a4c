"""Compares `--draft auto` with the best single source, which auto has to find by itself.

    python benchmarks/arbitration.py BUNDLE [BUNDLE ...]

Plain decoding, each source that the bundle has and auto make texts of five kinds: Python, English
prose, questions with the chat template (if there is one), random tokens, and prompts that repeat
themselves (a file written again). They take turns text by text, and every text starts without
experience (`edgespec.measuring.bench`). For each kind, the best single source is picked on one half
of the prompts and compared with auto on the other half, and vice versa.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from common import add_threads, count, exit_code, facts_of, print_result, print_table
from prompts import CHAT, EDIT, PROSE, random_tokens

from edgespec import LLM
from edgespec.measuring.bench import PLAIN, VERDICTS, Bench, BenchLine, BenchRequest
from edgespec.measuring.prompts import read_prompts

_AUTO = "auto"
_KINDS = ("Python", "prose", "chat", "random tokens", "repeating")
_WANTED = 0.97  # of the best source's speed, in each line


@dataclass(frozen=True)
class Choice:
    """Auto on one kind of prompts at one temperature.

    Attributes:
        model: name of the bundle's folder.
        kind: kind of the prompts.
        temperature: sampling temperature.
        plain: tokens per second of plain decoding.
        picks: for each half, the setting that is best on the other half.
        best: tokens per second of these picks.
        auto: tokens per second of auto.
        to_best: ratio of auto's speed to that of the picks.
        to_plain: ratio of auto's speed to that of plain decoding.
        equal: comparison of all drafted texts with those of plain decoding.
    """

    model: str
    kind: str
    temperature: float
    plain: float
    picks: str
    best: float
    auto: float
    to_best: float
    to_plain: float
    equal: str


def main() -> None:
    arguments = _parse_arguments()
    found = list[Choice]()
    for bundle in arguments.bundles:
        with LLM(bundle, threads=arguments.threads) as llm:
            for kind, prompts in _prompts(llm, arguments).items():
                for temperature in arguments.temperature:
                    found.append(_choice(llm, kind, temperature, prompts, arguments))
                    print(found[-1], file=sys.stderr, flush=True)
    header = ["model", "prompts", "T", "plain", "picked on the other half", "best", _AUTO]
    rows = [list(asdict(each).values()) for each in found]
    print_table([*header, "to best", "to plain", "equal"], rows)
    mean = sum(each.to_best for each in found) / len(found)
    worst = min(found, key=lambda each: each.to_best)
    print(
        f"\nauto is {mean:.3f} of the picks in the mean, and {worst.to_best} at least "
        f"({worst.model}, {worst.kind}; wanted: {_WANTED})"
    )
    settings = {"threads": arguments.threads, "new_tokens": arguments.new_tokens}
    facts = {"choices": [asdict(each) for each in found], "to_best": round(mean, 3)}
    of = {bundle.name: facts_of(bundle) for bundle in arguments.bundles}
    print_result("arbitration", {"bundles": of, **settings, **facts})


def _prompts(llm: LLM, arguments: argparse.Namespace) -> dict[str, list[tuple[int, ...]]]:
    """Returns an even number of prompts of each kind."""
    encode = llm.tokenizer.encode
    limit = arguments.limit
    kinds = {
        "Python": [tuple(encode(each)) for each in read_prompts(arguments.prompts, limit)],
        "prose": [tuple(encode(each)) for each in PROSE[:limit]],
        "random tokens": random_tokens(llm.tokenizer.vocab_size, limit),
        "repeating": [tuple(encode(each)) for each in EDIT[:limit]],
    }
    if llm.tokenizer.has_chat_template:
        asked = ([{"role": "user", "content": each}] for each in CHAT[:limit])
        kinds["chat"] = [tuple(llm.chat_tokens(each)) for each in asked]
    even = {kind: kinds[kind][: len(kinds[kind]) // 2 * 2] for kind in _KINDS if kind in kinds}
    return {kind: even[kind] for kind in arguments.kinds if even.get(kind)}


def _choice(
    llm: LLM,
    kind: str,
    temperature: float,
    prompts: list[tuple[int, ...]],
    arguments: argparse.Namespace,
) -> Choice:
    drafts = [name for name in llm.draft_sources if name != "none"]
    halves = []
    for half in (prompts[::2], prompts[1::2]):
        asked = [BenchRequest(each, arguments.new_tokens, temperature, 7) for each in half]
        halves.append({line.name: line for line in Bench(llm, drafts, asked).measure(1)})
    picks = [max(_fixed(other), key=_speed).name for other in halves[::-1]]
    best = _together(*(half[pick] for half, pick in zip(halves, picks, strict=True)))
    auto, plain = (_together(*(half[name] for half in halves)) for name in (_AUTO, PLAIN))
    drafted = [line for half in halves for line in half.values() if line.name != PLAIN]
    found = sum((Counter(line.verdicts) for line in drafted), Counter[str]())
    verdicts = ", ".join(f"{found[each]} {each}" for each in VERDICTS if found[each])
    return Choice(
        llm.bundle.path.name,
        kind,
        temperature,
        round(plain, 1),
        " / ".join(picks),
        round(best, 1),
        round(auto, 1),
        round(auto / best, 3),
        round(auto / plain, 3),
        verdicts,
    )


def _fixed(lines: dict[str, BenchLine]) -> list[BenchLine]:
    return [line for name, line in lines.items() if name != _AUTO]


def _speed(line: BenchLine) -> float:
    return line.tokens_per_second


def _together(*lines: BenchLine) -> float:
    """Returns the tokens per second of two halves, each without its texts' first tokens."""
    tokens = [line.new_tokens - line.texts for line in lines]
    seconds = sum(n / line.tokens_per_second for n, line in zip(tokens, lines, strict=True))
    return sum(tokens) / seconds


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Auto against the best single source.")
    parser.add_argument("bundles", type=Path, nargs="+", help="folders of bundles")
    parser.add_argument(
        "--prompts", type=Path, nargs="+", default=(), help="JSON lines of Python prompts"
    )
    parser.add_argument("--limit", type=count, default=8, help="prompts of each kind (default 8)")
    parser.add_argument(
        "--new-tokens", type=count, default=64, help="tokens of each text (default 64)"
    )
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument(
        "--kinds", nargs="+", choices=_KINDS, default=_KINDS, help="kinds of prompts"
    )
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
