"""Compares `--draft auto` with the best fixed setting, which auto has to find by itself.

    python benchmarks/arbitration.py BUNDLE

Plain decoding, a grid of fixed settings and auto generate texts of five kinds: Python, English
prose, questions with the chat template (if there is one), random tokens, and prompts that repeat
themselves (a file written again). For each kind, the best fixed setting is picked on one half of
the prompts and compared with auto on the other half, and vice versa. Every text starts without
experience; settings take turns. Each text is compared with that of plain decoding on the same
engine (`texts.compare`).

The speed of a sampled text of 64 tokens varies: other seeds are 10 % faster or slower. So each
prompt is sampled several times. The planner's forecast is checked from the tenth round on, when
short repetitive texts are nearly over, so it is checked on longer texts by auto alone.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from common import add_threads, count, exit_code, print_result, print_table
from prompts import CHAT, EDIT, PROSE, random_tokens
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

from edgespec import bundle as bundles
from edgespec.api.loading import DEFAULT_TREE_WIDTH
from edgespec.measuring.equality import tally
from edgespec.measuring.prompts import read_prompts
from edgespec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_GRID: tuple[tuple[str, int | None, int], ...] = (
    *(("model", nodes, 1) for nodes in (2, 4, 8)),
    *(("model", nodes, 4) for nodes in (3, 5, 7, 8)),
    ("lookup", 7, 1),
    ("recycling", 7, 4),
)
"""Draft source, nodes and width of the fixed settings besides plain decoding; those of the draft
model only where the bundle has one."""

_AUTO = "auto", None, DEFAULT_TREE_WIDTH

_RANDOM = "random tokens"
_CHAT = "chat"
_KINDS = ("Python", "prose", _CHAT, _RANDOM, "repeating")
_WANTED = 0.95  # of the best fixed setting
_WANTED_ON_RANDOM = 0.97  # of plain decoding
_WANTED_FORECAST = 0.2  # how far predicted tokens per second may lie from measured ones


@dataclass(frozen=True)
class Line:
    """Auto on one kind of prompts at one temperature.

    Attributes:
        kind: kind of the prompts.
        temperature: sampling temperature.
        plain: tokens per second of the fastest plain decoding.
        picks: for each half, the fixed setting that is best on the other half.
        best: tokens per second of these picks.
        auto: tokens per second of auto.
        to_best: ratio of auto's speed to that of the picks.
        to_plain: ratio of auto's speed to that of plain decoding.
        predicted: ratio of expected to actual tokens per second, in the rounds of longer texts
            after the tenth; the median, or None if no text has as many rounds.
        sources: share of auto's rounds for each draft source.
        equal: comparison of auto's texts with those of plain decoding.
    """

    kind: str
    temperature: float
    plain: float
    picks: str
    best: float
    auto: float
    to_best: float
    to_plain: float
    predicted: float | None
    sources: str
    equal: str


def main() -> None:
    arguments = _parse_arguments()
    kinds = _prompts(arguments)
    requests = {
        (kind, temperature): [
            Request(prompt, temperature, repeat * len(prompts) + place, arguments.new_tokens)
            for repeat in range(arguments.repeat if temperature else 1)
            for place, prompt in enumerate(prompts)
        ]
        for kind, prompts in kinds.items()
        for temperature in arguments.temperature
    }
    has_draft = bundles.load(arguments.bundle).draft is not None
    grid = [each for each in _GRID if has_draft or each[0] != "model"]
    settings = settings_of(arguments.bundle, arguments.threads, (*grid, _AUTO))
    results = make_texts(settings, [r for group in requests.values() for r in group])
    verdicts = compare(results)
    longer = {
        key: [replace(r, new_tokens=arguments.forecast_tokens) for r in group]
        for key, group in requests.items()
    }
    planned = make_texts([_auto(results)], [r for group in longer.values() for r in group])
    lines = [
        _line(key, group, results, verdicts, _predicted(longer[key], planned))
        for key, group in requests.items()
    ]
    print_table(
        ["prompts", "T", "plain", "picked on the other half", "best", "auto", "to best",
         "to plain", "predicted", "rounds of auto", "equal"],
        [list(asdict(line).values()) for line in lines],
    )  # fmt: skip
    overall = _overall(requests.values(), results)
    print(f"\nall kinds together: auto is {overall:.3f} of the picks (wanted: {_WANTED})")
    print(f"equal, all settings: {tally(v for texts in verdicts.values() for v in texts.values())}")
    print_result(
        "arbitration",
        {
            **facts_of(arguments.bundle),
            "threads": arguments.threads,
            "new_tokens": arguments.new_tokens,
            "forecast_tokens": arguments.forecast_tokens,
            "repeats": arguments.repeat,
            "prompts": {kind: len(prompts) for kind, prompts in kinds.items()},
            "grid": grid,
            "wanted": {"to_best": _WANTED, "random": _WANTED_ON_RANDOM},
            "wanted_forecast": _WANTED_FORECAST,
            "overall_to_best": round(overall, 3),
            "lines": [asdict(line) for line in lines],
        },
    )


def _prompts(arguments: argparse.Namespace) -> dict[str, Sequence[str | tuple[int, ...]]]:
    """Returns an even number of prompts of each kind."""
    vocab_size = bundles.load(arguments.bundle).target.vocab_size
    limit = arguments.limit
    tokenizer = Tokenizer.from_folder(arguments.bundle)
    kinds: dict[str, Sequence[str | tuple[int, ...]]] = {
        "Python": read_prompts(arguments.prompts, limit),
        "prose": PROSE[:limit],
        _CHAT: [_asked(tokenizer, each) for each in CHAT[:limit]]
        if tokenizer.has_chat_template
        else [],
        _RANDOM: random_tokens(vocab_size, limit),
        "repeating": EDIT[:limit],
    }
    even = {kind: kinds[kind][: len(kinds[kind]) // 2 * 2] for kind in arguments.kinds}
    return {kind: prompts for kind, prompts in even.items() if prompts}


def _asked(tokenizer: Tokenizer, question: str) -> tuple[int, ...]:
    """Returns a question in the model's chat template."""
    chat = tokenizer.chat([{"role": "user", "content": question}])
    return tuple(tokenizer.encode(chat, add_special=False))


def _line(
    key: tuple[str, float],
    group: Sequence[Request],
    results: Results,
    verdicts: dict[Setting, dict[Request, str]],
    predicted: float | None,
) -> Line:
    auto = _auto(results)
    plain = max(
        _rate([(setting, group)], results) for setting in results if setting.loading.draft == "none"
    )
    picks = _picks(group, results)
    best, own = _rate(picks, results), _rate([(auto, group)], results)
    made = [results[auto][request] for request in group]
    rounds = Counter[str]()
    for result in made:
        rounds.update(result.sources)
    shares = [f"{name} {count / rounds.total():.0%}" for name, count in rounds.most_common(4)]
    return Line(
        *key,
        round(plain, 1),
        " / ".join(_name(setting) for setting, _ in picks),
        round(best, 1),
        round(own, 1),
        round(own / best, 3),
        round(own / plain, 3),
        predicted,
        ", ".join(shares),
        tally(verdicts[auto][request] for request in group),
    )


def _predicted(group: Sequence[Request], planned: Results) -> float | None:
    """Returns the ratio of expected to actual tokens per second of these texts."""
    made = [planned[_auto(planned)][request] for request in group]
    ratios = [
        r.predicted_tokens_per_second / r.measured_tokens_per_second
        for r in made
        if r.predicted_tokens_per_second and r.measured_tokens_per_second
    ]
    return round(median(ratios), 3) if ratios else None


def _picks(group: Sequence[Request], results: Results) -> list[tuple[Setting, Sequence[Request]]]:
    """Returns, for each half of the requests, the fixed setting that is best on the other half."""
    fixed = [setting for setting in results if setting.loading.draft != "auto"]
    halves = group[::2], group[1::2]
    return [
        (max(fixed, key=lambda setting: _rate([(setting, other)], results)), half)
        for half, other in (halves, halves[::-1])
    ]


def _rate(parts: Iterable[tuple[Setting, Sequence[Request]]], results: Results) -> float:
    """Returns the tokens per second over texts, each with its setting."""
    made = [results[setting][request] for setting, requests in parts for request in requests]
    tokens, seconds = further(made)
    return tokens / seconds


def _overall(groups: Iterable[Sequence[Request]], results: Results) -> float:
    """Returns the ratio of auto's speed to that of the picks, over all kinds."""
    auto = _auto(results)
    own = [(auto, group) for group in groups]
    picks = [pick for _, group in own for pick in _picks(group, results)]
    return _rate(own, results) / _rate(picks, results)


def _auto(results: Results) -> Setting:
    return next(setting for setting in results if setting.loading.draft == "auto")


def _name(setting: Setting) -> str:
    """Returns a setting's name as the command line's options."""
    loading = setting.loading
    if loading.draft == "none":
        return f"none on {loading.device.partition(':')[0]}"
    shape = "chain" if setting.width == 1 else "tree"
    return f"{loading.draft} {shape} {setting.nodes}"


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Auto against the best fixed setting.")
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument(
        "--prompts", type=Path, nargs="+", default=(), help="JSON lines of Python prompts"
    )
    parser.add_argument(
        "--limit", type=count, default=8, help="prompts of each kind, an even number (default 8)"
    )
    parser.add_argument(
        "--new-tokens", type=count, default=64, help="tokens of each text (default 64)"
    )
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument(
        "--forecast-tokens",
        type=count,
        default=256,
        help="tokens of each longer text (default 256)",
    )
    parser.add_argument(
        "--repeat", type=count, default=2, help="samples of each prompt (default 2)"
    )
    parser.add_argument(
        "--kinds", nargs="+", choices=_KINDS, default=_KINDS, help="kinds of prompts"
    )
    add_threads(parser)
    arguments = parser.parse_args()
    if arguments.new_tokens < 2:
        parser.error("--new-tokens 1: the first token is not part of the speed, give 2 or more")
    if arguments.limit < 2:
        parser.error("--limit 1: the halves need a prompt each, give 2 or more")
    return arguments


if __name__ == "__main__":
    sys.exit(exit_code(main))
