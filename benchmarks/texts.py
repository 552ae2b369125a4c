"""Generates texts with several settings in turns, and compares them with plain decoding's.

Each combination of load options has its own process. They take turns request by request; the others
sleep.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.measuring.equality import Judge
from edgespec.runtime.deployment.options import DEFAULT_TREE_WIDTH
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.execution.model import Model
from edgespec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from edgespec.api.result import GenerationResult


@dataclass(frozen=True)
class Loading:
    """A combination of load options for a bundle."""

    bundle: str
    draft: str
    device: str
    threads: int


@dataclass(frozen=True)
class Setting:
    """Load options and tree sizes of texts; None: edgespec chooses the size."""

    loading: Loading
    nodes: int | None = None
    width: int = DEFAULT_TREE_WIDTH


@dataclass(frozen=True)
class Request:
    """A prompt (text or token ids), and the seed that all settings use for it."""

    prompt: str | tuple[int, ...]
    temperature: float
    seed: int
    new_tokens: int


Results = dict[Setting, dict[Request, "GenerationResult"]]


def settings_of(
    bundle: Path, threads: int, drafts: Iterable[tuple[str, int | None, int]]
) -> list[Setting]:
    """Returns plain decoding on each engine, then draft sources with default options."""

    def loading(draft: str, device: str) -> Loading:
        return Loading(str(bundle), draft, device, threads)

    return [
        *(Setting(loading("none", name)) for name in CPU_ENGINES),
        *(Setting(loading(draft, "cpu"), nodes, width) for draft, nodes, width in drafts),
    ]


def make_texts(settings: Sequence[Setting], requests: Sequence[Request]) -> Results:
    """Generates all texts with all settings."""
    results: Results = defaultdict(dict)
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        workers = {
            loading: stack.enter_context(ProcessPoolExecutor(1, mp_context=spawn))
            for loading in dict.fromkeys(setting.loading for setting in settings)
        }
        for setting in settings:  # loads and warms up
            workers[setting.loading].submit(_generate, setting, requests[0]).result()
        for number, request in enumerate(requests):
            _show_progress(number, len(requests))
            for setting in settings:
                made = workers[setting.loading].submit(_generate, setting, request)
                results[setting][request] = made.result()
    _show_progress(len(requests), len(requests))
    return dict(results)


def compare(results: Results) -> dict[Setting, dict[Request, str]]:
    """Compares each text with plain decoding on the same engine, see `equality.VERDICTS`."""
    plain = {
        result.engine: texts
        for setting, texts in results.items()
        if setting.loading.draft == "none"
        for result in texts.values()
    }
    judges: dict[str, Judge] = {}
    verdicts: dict[Setting, dict[Request, str]] = defaultdict(dict)
    for setting, texts in results.items():
        for request, result in texts.items():
            expected = plain[result.engine][request].tokens
            if result.tokens == expected:
                verdict = "yes"
            else:
                if result.engine not in judges:
                    judges[result.engine] = judge_of(setting.loading, result.engine)
                verdict = judges[result.engine].verdict(
                    request.prompt, expected, result.tokens, request.temperature, request.seed
                )
            verdicts[setting][request] = verdict
    return verdicts


def further(results: Iterable[GenerationResult]) -> tuple[int, float]:
    """Returns the number of tokens after the first of each text, and their seconds."""
    pairs = [(r.new_tokens - 1, r.tpot_ms * (r.new_tokens - 1) / 1e3) for r in results]
    return sum(tokens for tokens, _ in pairs), sum(seconds for _, seconds in pairs)


def speed(results: Sequence[GenerationResult]) -> float:
    """Returns the tokens per second of all texts together, without the first of each."""
    tokens, seconds = further(results)
    return round(tokens / seconds, 1)


def mean_length(results: Sequence[GenerationResult]) -> float:
    """Returns the mean number of tokens of a round; 0 if there was none."""
    rounds = sum(result.rounds for result in results)
    return round(further(results)[0] / max(1, rounds), 2)


def facts_of(bundle: Path) -> Mapping[str, object]:
    """Returns the facts about a bundle for a benchmark's JSON line."""
    found = bundles.load(bundle)
    return {
        "bundle": found.manifest.provenance,
        "parameters": {name: role.parameters for name, role in found.manifest.roles.items()},
        "precision": found.target.precision.weights,
    }


def _generate(setting: Setting, request: Request) -> GenerationResult:
    """Generates a text in a worker, without experience; the first call loads the bundle."""
    llm = _loaded(setting.loading)
    llm.forget()
    return llm.generate(
        request.prompt,
        max_new_tokens=request.new_tokens,
        temperature=request.temperature,
        seed=request.seed,
        num_assistant_tokens=setting.nodes,
        tree_width=setting.width,
    )


@cache
def _loaded(loading: Loading) -> LLM:
    return LLM(loading.bundle, draft=loading.draft, device=loading.device, threads=loading.threads)


def judge_of(loading: Loading, device: str) -> Judge:
    """Returns a judge of texts that were generated on this engine."""
    bundle = bundles.load(Path(loading.bundle))
    model = Model.load(bundle, bundles.TARGET, engine(device), loading.threads)
    return Judge(model, Tokenizer.from_folder(bundle.path))


def _show_progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done}/{of} texts", end="\n" if done == of else "", file=sys.stderr, flush=True)
