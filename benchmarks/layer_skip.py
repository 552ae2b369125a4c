"""Measures layer-skip drafts: time saved, acceptance and speed, compared with their scores.

    python benchmarks/layer_skip.py BUNDLE [BUNDLE ...]

The bundles have the same target and different skip sets (`edgespec export --layer-skip`); the first
may have none. First, it measures a draft's call and the verification after a chain, which reuses
the results of the draft's first stages, against one that computes all rows again. Then it generates
texts with chains of each set, with `--draft layer-skip`, `--draft auto` and plain decoding, in
turns. All are compared with plain decoding by the first bundle.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from common import add_threads, count, exit_code, print_result, print_table
from texts import Loading, Request, facts_of, judge_of

from edgespec import bundle as bundles
from edgespec.api.drafting import Drafting
from edgespec.bundle import TARGET, Bundle, SkipSet
from edgespec.measuring.equality import tally
from edgespec.measuring.prompts import PYTHON
from edgespec.runtime.decoding.generate import PROMPT, Limits, generate
from edgespec.runtime.decoding.pipelines import Serial
from edgespec.runtime.deployment.deployment import Loaded, deploy, load, with_costs
from edgespec.runtime.deployment.options import (
    DEFAULT_TREE_WIDTH,
    PLANNED_DRAFT_TOKENS,
    LoadOptions,
)
from edgespec.runtime.drafters import (
    Drafter,
    DrafterState,
    ModelDrafter,
    NoDrafter,
    SkipCalls,
    TreeBudget,
)
from edgespec.runtime.drafters.acceptance import Calibration
from edgespec.runtime.drafters.successors import Successors
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.paths import StagePath
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions
from edgespec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHAIN = 3  # of a set without a score
_WARM_UP = 2  # rounds
_TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True, eq=False)
class Part:
    """A loaded bundle."""

    bundle: Bundle
    loaded: dict[str, Loaded]

    @property
    def name(self) -> str:
        """Name of the bundle's folder."""
        return self.bundle.path.resolve().name


@dataclass(frozen=True, eq=False)
class Way:
    """A way to generate texts: a draft source, or chains of one skip set.

    Attributes:
        asked: draft length with that set; None: the best length by its score.
    """

    part: Part
    name: str
    skip: SkipSet | None = None
    asked: int | None = None

    def chain(self, sampled: bool) -> int:
        """Drafted tokens of a round with the set."""
        score = self.skip and self.skip.score
        return self.asked or (score.promise(sampled).chain if score else _CHAIN)

    @property
    def path(self) -> StagePath:
        """The stages that the set keeps."""
        assert self.skip is not None
        return StagePath.without(self.part.bundle.target, self.skip.skipped)


@dataclass(frozen=True)
class Text:
    """A generated text: tokens, and the seconds after the first one."""

    tokens: tuple[int, ...]
    seconds: float
    rounds: int


def main() -> None:
    arguments = _parse_arguments()
    parts = [_load(bundles.load(path), arguments) for path in arguments.bundles]
    savings = [line for part in parts for line in _savings(part, arguments)]
    header = ["bundle", "left out", "stages kept", "leading", "call ms", "rows", "afresh ms"]
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
    options = LoadOptions(
        device=arguments.device, draft_device=arguments.device, threads=arguments.threads,
        draft="model" if bundle.draft else "none",
    )  # fmt: skip
    return Part(bundle, load(with_costs(deploy(bundle, options), always=True)))


def _savings(part: Part, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Returns median milliseconds of a draft's call, and of the verification after a chain.

    The verification reuses the draft's results ("behind") or not ("afresh"), in turns. Both follow
    the draft's calls of one row, so both include the change of shape.
    """
    tokens = Tokenizer.from_folder(part.bundle.path).encode("\n\n".join(PYTHON))
    runner = Runner(part.loaded[TARGET].model)
    runner.prefill(tokens[:200])
    samples: dict[tuple[Way, str], list[float]] = defaultdict(list)
    skip_sets = part.bundle.manifest.skip_sets
    layout = part.bundle.target.layout
    ways = [Way(part, layout.describe(each.skipped), each, arguments.chain) for each in skip_sets]
    for turn in range(_WARM_UP + arguments.rounds):
        for way, kind in product(ways, ("behind", "afresh")):
            n = way.chain(sampled=False)
            rows = Rows.chain(tokens[200 : 201 + n])
            begin = time.perf_counter()
            runner.draft(_chain_row(rows, 0), way.path)
            call = time.perf_counter() - begin
            for depth in range(1, n):
                runner.draft(_chain_row(rows, depth), way.path)
            if kind == "afresh":
                runner.forget_scratch()
            begin = time.perf_counter()
            runner.verify(rows)
            seconds = time.perf_counter() - begin
            runner.forget_scratch()
            if turn >= _WARM_UP:
                samples[way, "call"].append(call)
                samples[way, kind].append(seconds)
    table = []
    for way in ways:
        call, afresh, behind = (
            round(median(samples[way, kind]) * 1e3, 2) for kind in ("call", "afresh", "behind")
        )
        table.append(
            {
                "bundle": part.name, "set": way.name,
                "kept": len(way.path.stages), "leading": way.path.exact,
                "call_ms": call, "rows": way.chain(sampled=False) + 1,
                "afresh_ms": afresh, "behind_ms": behind, "saved": round(1 - behind / afresh, 3),
            }
        )  # fmt: skip
    return table


def _chain_row(rows: Rows, depth: int) -> Rows:
    """Returns a function that runs a draft's call of one row of a chain."""
    mask = rows.mask[depth : depth + 1, : depth + 1]
    return Rows([rows.tokens[depth]], [depth], mask, [rows.parents[depth]])


def _texts(parts: Sequence[Part], arguments: argparse.Namespace) -> dict[Way, dict[Request, Text]]:
    ways = []
    for part in parts:
        sets, layout = part.bundle.manifest.skip_sets, part.bundle.target.layout
        ways.append(Way(part, "none"))
        ways += [
            Way(part, f"skip {layout.describe(each.skipped)}", each, arguments.chain)
            for each in sets
        ]
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
    """Generates one text without experience from earlier ones."""
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
    tokens, begin, rounds = list[int](), 0.0, 0
    for step in steps:
        tokens += step.tokens
        if step.source == PROMPT:
            begin = time.perf_counter()
        else:
            rounds += 1
    return Text(tuple(tokens), time.perf_counter() - begin, rounds)


def _drafter(way: Way, runner: Runner, sampled: bool) -> tuple[Drafter, TreeBudget]:
    bundle = way.part.bundle
    if way.skip is not None:
        calls, chain = SkipCalls(runner, way.path), way.chain(sampled)
        return ModelDrafter(calls, Calibration()), TreeBudget(chain, chain, 1)
    if way.name == "none":
        return NoDrafter(), TreeBudget(0, 0, 1)
    learned = DrafterState(Successors(bundle.target.vocab_size))
    drafter = Drafting(way.name, bundle, way.part.loaded).drafter(
        {TARGET: runner}, learned, sampled, way.name
    )
    return drafter, TreeBudget(PLANNED_DRAFT_TOKENS, PLANNED_DRAFT_TOKENS, DEFAULT_TREE_WIDTH)


def _speeds(
    texts: dict[Way, dict[Request, Text]], arguments: argparse.Namespace
) -> list[dict[str, object]]:
    plain, device = next(iter(texts)), arguments.device
    path = str(plain.part.bundle.path)
    judge = judge_of(Loading(path, "none", device, arguments.threads), device)
    lines = []
    for temperature in _TEMPERATURES:
        expected = {r: text for r, text in texts[plain].items() if r.temperature == temperature}
        sampled = temperature > 0
        for way in texts:
            made = {request: texts[way][request] for request in expected}
            score = way.skip and way.skip.score
            verdicts = [
                judge.verdict(
                    request.prompt, expected[request].tokens, text.tokens, temperature, request.seed
                )
                for request, text in made.items()
            ]
            tokens = sum(len(text.tokens) - 1 for text in made.values())
            rounds = sum(text.rounds for text in made.values())
            lines.append(
                {
                    "bundle": way.part.name, "temperature": temperature, "source": way.name,
                    "chain": way.chain(sampled) if way.skip else "-",
                    "tokens_per_second": round(_rate(made), 1),
                    "to_plain": round(_rate(made) / _rate(expected), 3),
                    "promised": round(score.speedup(sampled), 3) if score else "-",
                    "accepted": round(tokens / rounds, 2), "equal": tally(verdicts),
                }
            )  # fmt: skip
    return lines


def _rate(made: dict[Request, Text]) -> float:
    """Returns tokens per second, without the first token of each text."""
    texts = made.values()
    return sum(len(t.tokens) - 1 for t in texts) / sum(t.seconds for t in texts)


def _parse_arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "bundles", nargs="+", type=Path, metavar="BUNDLE", help="folders of the bundles"
    )
    parser.add_argument("--device", default="onnxruntime:cpu", help="default: %(default)s")
    parser.add_argument("--prompts", type=count, default=4, help="prompts of each kind (default 4)")
    parser.add_argument(
        "--new-tokens", type=count, default=64, help="tokens of a text (default 64)"
    )
    parser.add_argument(
        "--rounds", type=count, default=10, help="repeats; the median is reported (default 10)"
    )
    parser.add_argument(
        "--chain", type=count, metavar="N",
        help="drafted tokens of a round (default: what each set's score promises most of)",
    )  # fmt: skip
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
