"""What speculation brings: tokens per second of each draft source against plain decoding.

    python benchmarks/speculation.py BUNDLE --temperature 0 0.8

Plain decoding runs on each engine, the draft sources on `cpu`, as a user gets them. Each setting
has a process of its own, and prompt by prompt they take turns; those that wait, sleep.

Every text is compared with plain decoding's on the same engine: `yes`, it is the same; `near-tie`,
it is the same up to a place where the target scores both tokens alike, closer than the rounding of
a quantized model tells apart; `no`, which is a fault.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from common import add_threads, count, exit_code, print_result, print_table
from prompts import load_prompts

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.options import GenerationOptions
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.model import Model, Runner
from edgespec.runtime.noise import gumbel
from edgespec.runtime.text import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from edgespec.stream import GenerationResult

_BAR = 1.4  # of the draft model against the fastest plain decoding
_NEAR_TIE = 0.05  # standard deviations of the logits
_VERDICTS = ("no", "near-tie", "yes")  # the worst first


@dataclass(frozen=True)
class Setting:
    """How a bundle is loaded."""

    bundle: str
    draft: str
    device: str
    threads: int


@dataclass(frozen=True)
class Request:
    """One text: a prompt, and the seed under which every setting makes it."""

    prompt: str
    temperature: float
    seed: int


@dataclass(frozen=True)
class Measured:
    """One line of the table; the median over repeats of tokens per second."""

    temperature: float
    draft: str
    engine: str
    tokens_per_second: float
    to_fastest_plain: float
    ttft_ms: float
    mean_accepted_length: float
    equal: str


Results = dict[Setting, dict[Request, "GenerationResult"]]


def main() -> None:
    arguments = _parse_arguments()
    prompts = load_prompts(arguments.prompts, arguments.limit)
    settings = [
        *(_setting(arguments, "none", name) for name in CPU_ENGINES),
        *(_setting(arguments, draft, "cpu") for draft in arguments.draft),
    ]
    options = {
        "max_new_tokens": arguments.new_tokens,
        "num_assistant_tokens": arguments.num_draft_tokens,
        "tree_width": arguments.tree_width,
    }
    # The seed is the number of the repeat: sampled texts differ from repeat to repeat.
    requests = [
        Request(prompt, temperature, repeat)
        for repeat in range(arguments.repeat)
        for temperature in arguments.temperature
        for prompt in prompts
    ]
    results = _run(settings, requests, options)
    verdicts = _compare(results)
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
    bundle = bundles.load(arguments.bundle)
    print_result(
        "speculation",
        {
            "bundle": bundle.manifest.provenance,
            "parameters": {name: role.parameters for name, role in bundle.manifest.roles.items()},
            "precision": bundle.target.precision.weights,
            "threads": arguments.threads,
            **options,
            "prompts": len(prompts),
            "repeats": arguments.repeat,
            "lines": [asdict(line) for line in lines],
        },
    )


def _setting(arguments: argparse.Namespace, draft: str, device: str) -> Setting:
    return Setting(str(arguments.bundle), draft, device, arguments.threads)


def _run(settings: list[Setting], requests: list[Request], options: dict[str, Any]) -> Results:
    """All texts of all settings, which take turns."""
    results: Results = defaultdict(dict)
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        workers = {
            setting: stack.enter_context(ProcessPoolExecutor(1, mp_context=spawn))
            for setting in settings
        }
        for setting, worker in workers.items():
            worker.submit(_generate, setting, requests[0], options).result()  # loads and warms up
        for number, request in enumerate(requests):
            _show_progress(number, len(requests))
            for setting, worker in workers.items():
                result = worker.submit(_generate, setting, request, options).result()
                results[setting][request] = result
    _show_progress(len(requests), len(requests))
    return dict(results)


def _generate(setting: Setting, request: Request, options: dict[str, Any]) -> GenerationResult:
    """In a worker: one text, with the bundle loaded at the first."""
    return _loaded(setting).generate(
        request.prompt, temperature=request.temperature, seed=request.seed, **options
    )


@cache
def _loaded(setting: Setting) -> LLM:
    return LLM(setting.bundle, draft=setting.draft, device=setting.device, threads=setting.threads)


def _summary(
    results: Results, verdicts: dict[Setting, dict[Request, str]], temperature: float
) -> Iterator[Measured]:
    of = {
        setting: {r: result for r, result in texts.items() if r.temperature == temperature}
        for setting, texts in results.items()
    }
    speeds = {setting: _tokens_per_second(texts) for setting, texts in of.items()}
    fastest = max(speed for setting, speed in speeds.items() if setting.draft == "none")
    for setting, texts in of.items():
        further = sum(result.new_tokens - 1 for result in texts.values())
        found = Counter(verdicts[setting][request] for request in texts)
        yield Measured(
            temperature,
            setting.draft,
            next(iter(texts.values())).engine,
            round(speeds[setting], 1),
            round(speeds[setting] / fastest, 2),
            round(median(result.ttft_ms for result in texts.values()), 1),
            round(further / max(1, sum(result.rounds for result in texts.values())), 2),
            ", ".join(f"{found[verdict]} {verdict}" for verdict in _VERDICTS if found[verdict]),
        )


def _tokens_per_second(texts: dict[Request, GenerationResult]) -> float:
    """All tokens after the first of a repeat by all their time; of the repeats, the median."""
    tokens, seconds = Counter[int](), defaultdict[int, float](float)
    for request, result in texts.items():
        tokens[request.seed] += result.new_tokens - 1
        seconds[request.seed] += result.tpot_ms * (result.new_tokens - 1) / 1e3
    return median(tokens[seed] / seconds[seed] for seed in seconds if seconds[seed])


def _compare(results: Results) -> dict[Setting, dict[Request, str]]:
    """How each text relates to plain decoding's on the same engine."""
    plain = {setting.device: texts for setting, texts in results.items() if setting.draft == "none"}
    judges: dict[str, _Judge] = {}
    verdicts: dict[Setting, dict[Request, str]] = defaultdict(dict)
    for setting, texts in results.items():
        for request, result in texts.items():
            expected = plain[result.engine][request].tokens
            if result.tokens == expected:
                verdict = "yes"
            else:
                if result.engine not in judges:
                    judges[result.engine] = _Judge(setting, result.engine)
                verdict = judges[result.engine].verdict(request, expected, result.tokens)
            verdicts[setting][request] = verdict
    return verdicts


class _Judge:
    """Scores the tokens at which two texts part, by the target on the engine that made them."""

    def __init__(self, setting: Setting, device: str) -> None:
        bundle = bundles.load(Path(setting.bundle))
        self._tokenizer = Tokenizer.from_folder(bundle.path)
        self._model = Model.load(bundle, bundles.TARGET, engine(device), setting.threads)

    def verdict(self, request: Request, expected: Sequence[int], found: Sequence[int]) -> str:
        """`near-tie` or `no`, for texts that are not equal."""
        pairs = list(zip(expected, found, strict=False))
        same = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
        if same is None:  # one ends where the other goes on
            return "no"
        text = [*self._tokenizer.encode(request.prompt), *expected[:same]]
        logits = Runner(self._model).prefill(text)["logits"][0][: self._tokenizer.vocab_size]
        scores = logits.astype(np.float64)
        if request.temperature:
            ids = np.arange(scores.size)
            scores += request.temperature * gumbel(request.seed, len(text), ids)
        behind = scores.max() - scores[list(pairs[same])].min()
        return "near-tie" if behind <= _NEAR_TIE * logits.std() else "no"


def _show_progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done}/{of} texts", end="\n" if done == of else "", file=sys.stderr, flush=True)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Draft sources against plain decoding.")
    defaults = GenerationOptions()
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument("--prompts", type=Path, help="JSON lines with prompt or turns")
    parser.add_argument("--limit", type=count, help="use the first so many prompts")
    parser.add_argument("--new-tokens", type=count, default=64, help="of each text (default 64)")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--repeat", type=count, default=3, help="the median counts (default 3)")
    parser.add_argument(
        "--draft", nargs="+", choices=("model", "lookup"), default=["model", "lookup"]
    )
    parser.add_argument("--num-draft-tokens", type=count, default=defaults.num_assistant_tokens)
    parser.add_argument("--tree-width", type=count, default=defaults.tree_width)
    add_threads(parser)
    arguments = parser.parse_args()
    if arguments.new_tokens < 2:
        parser.error("--new-tokens 1: the first token is not part of the speed, give 2 or more")
    return arguments


if __name__ == "__main__":
    sys.exit(exit_code(main))
