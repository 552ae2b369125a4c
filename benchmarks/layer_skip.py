"""Drafts on the target's own stages: what they save, accept and bring, against what was promised.

    python benchmarks/layer_skip.py BUNDLE [BUNDLE ...]

For bundles of one target with skip sets (`edgespec export --layer-skip`); the first may have none.
First, a draft's call and the verification behind a chain, which takes over what the draft's leading
stages computed, against the same rows verified afresh. Then texts: chains of each set at the length
that its score promises most of, what `--draft layer-skip` and `--draft auto` choose, and plain
decoding, in turns. All are compared with plain decoding by the first bundle.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from common import add_threads, count, exit_code, print_result, print_table
from prompts import PYTHON
from texts import Judge, Loading, Request, facts_of, tally

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET, Bundle, SkipSet
from edgespec.drafting import Drafting
from edgespec.options import DEFAULT_TREE_WIDTH, PLANNED_DRAFT_TOKENS
from edgespec.runtime.calibration import Calibration
from edgespec.runtime.drafters import (
    Drafter,
    Experience,
    ModelDrafter,
    NoDrafter,
    SkipCalls,
    TreeBudget,
)
from edgespec.runtime.feeds import START, Rows
from edgespec.runtime.generate import Limits, generate
from edgespec.runtime.model import Runner
from edgespec.runtime.paths import Path as Stages
from edgespec.runtime.pipelines import Serial
from edgespec.runtime.sampling import Sampler, SamplingOptions
from edgespec.runtime.selection import Loaded, Placement, load_models
from edgespec.runtime.successors import Successors
from edgespec.runtime.text import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHAIN = 3  # of a set without a score
_WARM_UP = 2  # rounds
_TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True, eq=False)
class Part:
    """A bundle, ready to run."""

    bundle: Bundle
    loaded: dict[str, Loaded]

    @property
    def name(self) -> str:
        """Of the bundle's folder."""
        return self.bundle.path.resolve().name


@dataclass(frozen=True, eq=False)
class Way:
    """How texts are made: by a source of edgespec's, or in chains of one skip set."""

    part: Part
    name: str
    skip: SkipSet | None = None

    @property
    def chain(self) -> int:
        """Drafted tokens of a round."""
        return (self.skip and self.skip.score and self.skip.score.chain) or _CHAIN


@dataclass(frozen=True)
class Text:
    """A text that was made: tokens and seconds after the first one."""

    tokens: tuple[int, ...]
    seconds: float
    rounds: int


def main() -> None:
    arguments = _parse_arguments()
    parts = [_load(bundles.load(path), arguments) for path in arguments.bundles]
    savings = [line for part in parts for line in _savings(part, arguments.rounds)]
    header = ["bundle", "left out", "stages kept", "leading", "call ms", "rows", "pass ms"]
    print_table([*header, "behind ms", "saved"], [list(line.values()) for line in savings])
    print()
    texts = _texts(parts, arguments)
    speeds = _speeds(texts, arguments)
    header = ["bundle", "T", "source", "chain", "tokens/s", "to plain", "promised", "accepted"]
    print_table([*header, "equal"], [list(line.values()) for line in speeds])
    print_result(
        "layer_skip",
        {
            **facts_of(arguments.bundles[0]),
            "device": arguments.device,
            "threads": arguments.threads,
            "stages": {part.name: len(part.bundle.target.stages) for part in parts},
            "savings": savings,
            "speeds": speeds,
        },
    )


def _load(bundle: Bundle, arguments: argparse.Namespace) -> Part:
    place = Placement(arguments.device, arguments.threads, (1 + _CHAIN,))
    roles = [TARGET, DRAFT] if bundle.draft else [TARGET]
    return Part(bundle, load_models(bundle, dict.fromkeys(roles, place), costs=True))


def _savings(part: Part, rounds: int) -> list[dict[str, object]]:
    """Median milliseconds of a draft's calls, and of passes with and without what they left."""
    bundle = part.bundle
    tokens = Tokenizer.from_folder(bundle.path).encode("\n\n".join(PYTHON))
    runner = Runner(part.loaded[TARGET].model)
    runner.prefill(tokens[:200])
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    ways = [Way(part, each.name, each) for each in bundle.manifest.skip_sets]
    for turn in range(_WARM_UP + rounds):
        for way in ways:
            assert way.skip is not None
            path, n = Stages.without(bundle.target, way.skip.skipped), way.chain
            rows = _chain(tokens[200 : 201 + n])
            begin = time.perf_counter()
            runner.draft(_chain_row(rows, 0), path)
            call = time.perf_counter()
            for depth in range(1, n):
                runner.draft(_chain_row(rows, depth), path)
            drafted = time.perf_counter()
            runner.verify(rows)
            behind = time.perf_counter()
            runner.forget_scratch()
            runner.verify(rows)  # the first pass pays for the change of shape
            middle = time.perf_counter()
            runner.verify(rows)
            if turn >= _WARM_UP:
                afresh = time.perf_counter() - middle
                samples[way.name, "call"].append(call - begin)
                samples[way.name, "behind"].append(behind - drafted)
                samples[way.name, "afresh"].append(afresh)
    table = []
    for way in ways:
        assert way.skip is not None
        stages = Stages.without(bundle.target, way.skip.skipped)
        call, behind, afresh = (
            round(median(samples[way.name, kind]) * 1e3, 2) for kind in ("call", "behind", "afresh")
        )
        table.append(
            {
                "bundle": part.name, "set": way.name,
                "kept": len(stages.stages), "leading": stages.exact,
                "call_ms": call, "rows": way.chain + 1, "afresh_ms": afresh, "behind_ms": behind,
                "saved": round(1 - behind / afresh, 3),
            }
        )  # fmt: skip
    return table


def _chain(tokens: Sequence[int]) -> Rows:
    n = len(tokens)
    return Rows(tokens, range(n), np.tri(n, dtype=np.bool_), [START, *range(n - 1)])


def _chain_row(rows: Rows, depth: int) -> Rows:
    """The call of a draft that runs one row of a chain."""
    mask = rows.mask[depth : depth + 1, : depth + 1]
    return Rows([rows.tokens[depth]], [depth], mask, [rows.parents[depth]])


def _texts(parts: Sequence[Part], arguments: argparse.Namespace) -> dict[Way, dict[Request, Text]]:
    ways = []
    for part in parts:
        sets = part.bundle.manifest.skip_sets
        ways += [Way(part, "none"), *(Way(part, f"skip {each.name}", each) for each in sets)]
        ways += [Way(part, name) for name in ("layer-skip", "auto") if sets]
    requests = [
        Request(prompt, temperature, seed, arguments.new_tokens)
        for temperature in _TEMPERATURES
        for seed, prompt in enumerate(PYTHON[: arguments.prompts])
    ]
    texts: dict[Way, dict[Request, Text]] = defaultdict(dict)
    for way in ways:  # new shapes are planned for
        _text(way, requests[0])
    for request in requests:
        for way in ways:
            texts[way][request] = _text(way, request)
    return dict(texts)


def _text(way: Way, request: Request) -> Text:
    """One text, as if it were the first."""
    bundle, loaded = way.part.bundle, way.part.loaded
    tokenizer = Tokenizer.from_folder(bundle.path)
    runner = Runner(loaded[TARGET].model)
    drafter, budget = _drafter(way, runner, sampled=request.temperature > 0)
    role = bundle.target
    options = SamplingOptions(temperature=request.temperature, seed=request.seed)
    limits = Limits(request.new_tokens, role.context_length, frozenset(role.eos_ids))
    assert isinstance(request.prompt, str)
    steps = generate(
        Serial(runner, drafter), Sampler(options, tokenizer.vocab_size),
        tokenizer.encode(request.prompt), limits=limits, budget=budget,
    )  # fmt: skip
    tokens = list(next(steps).tokens)
    begin, rounds = time.perf_counter(), 0
    for step in steps:
        tokens += step.tokens
        rounds += 1
    return Text(tuple(tokens), time.perf_counter() - begin, rounds)


def _drafter(way: Way, runner: Runner, sampled: bool) -> tuple[Drafter, TreeBudget]:
    bundle = way.part.bundle
    if way.skip is not None:
        calls = SkipCalls(runner, Stages.without(bundle.target, way.skip.skipped))
        return ModelDrafter(calls, Calibration()), TreeBudget(way.chain, way.chain, 1)
    if way.name == "none":
        return NoDrafter(), TreeBudget(0, 0, 1)
    learned = Experience(Successors(bundle.target.vocab_size))
    drafter = Drafting(way.name, bundle, way.part.loaded).drafter(runner, learned, sampled)
    return drafter, TreeBudget(PLANNED_DRAFT_TOKENS, PLANNED_DRAFT_TOKENS, DEFAULT_TREE_WIDTH)


def _speeds(
    texts: dict[Way, dict[Request, Text]], arguments: argparse.Namespace
) -> list[dict[str, object]]:
    plain = next(iter(texts))
    device = arguments.device
    path = str(plain.part.bundle.path)
    judge = Judge(Loading(path, "none", device, arguments.threads), device)
    lines = []
    for temperature in _TEMPERATURES:
        base = _rate(texts[plain], temperature)
        for way, made in texts.items():
            rate = _rate(made, temperature)
            score = way.skip and way.skip.score
            promised = score.speedup if score else None
            rounds = sum(t.rounds for r, t in made.items() if r.temperature == temperature)
            tokens = sum(len(t.tokens) - 1 for r, t in made.items() if r.temperature == temperature)
            verdicts = [
                "yes"
                if text.tokens == texts[plain][request].tokens
                else judge.verdict(request, texts[plain][request].tokens, text.tokens)
                for request, text in made.items()
                if request.temperature == temperature
            ]
            lines.append(
                {
                    "bundle": way.part.name, "temperature": temperature, "source": way.name,
                    "chain": way.chain if way.skip else "-",
                    "tokens_per_second": round(rate, 1), "to_plain": round(rate / base, 3),
                    "promised": "-" if promised is None else round(promised, 3),
                    "accepted": round(tokens / rounds, 2), "equal": tally(verdicts),
                }
            )  # fmt: skip
    return lines


def _rate(made: dict[Request, Text], temperature: float) -> float:
    """Tokens per second after the first, of all texts at a temperature."""
    texts = [text for request, text in made.items() if request.temperature == temperature]
    return sum(len(t.tokens) - 1 for t in texts) / sum(t.seconds for t in texts)


def _parse_arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE", help="their folders")
    parser.add_argument("--device", default="onnxruntime:cpu", help="default: %(default)s")
    parser.add_argument("--prompts", type=count, default=4, help="of each kind (default 4)")
    parser.add_argument("--new-tokens", type=count, default=64, help="of a text (default 64)")
    parser.add_argument("--rounds", type=count, default=10, help="the median counts (default 10)")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
