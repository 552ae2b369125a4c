"""Texts of a bundle under several settings, made in turns, and how they relate to plain decoding's.

Each way of loading has a process of its own, and request by request they take turns; those that
wait, sleep.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.options import DEFAULT_TREE_WIDTH
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.runtime.feeds import Floats, Rows
from edgespec.runtime.model import Model, Runner
from edgespec.runtime.noise import gumbel
from edgespec.runtime.text import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from edgespec.stream import GenerationResult

_NEAR_TIE = 0.05  # standard deviations of the logits
_COMPANIES = (1, 3, 8, 16)  # rows of a pass
_VERDICTS = ("no", "near-tie", "yes")  # the worst first


@dataclass(frozen=True)
class Loading:
    """How a bundle is loaded."""

    bundle: str
    draft: str
    device: str
    threads: int


@dataclass(frozen=True)
class Setting:
    """How texts are made: the size of trees beside what is loaded; None: what edgespec chooses."""

    loading: Loading
    nodes: int | None = None
    width: int = DEFAULT_TREE_WIDTH


@dataclass(frozen=True)
class Request:
    """One text: a prompt (text or token ids), and the seed under which every setting makes it."""

    prompt: str | tuple[int, ...]
    temperature: float
    seed: int
    new_tokens: int


Results = dict[Setting, dict[Request, "GenerationResult"]]


def settings_of(
    bundle: Path, threads: int, drafts: Iterable[tuple[str, int | None, int]]
) -> list[Setting]:
    """Plain decoding on each engine, then draft sources with nodes and width, as users get them."""

    def loading(draft: str, device: str) -> Loading:
        return Loading(str(bundle), draft, device, threads)

    return [
        *(Setting(loading("none", name)) for name in CPU_ENGINES),
        *(Setting(loading(draft, "cpu"), nodes, width) for draft, nodes, width in drafts),
    ]


def make_texts(settings: Sequence[Setting], requests: Sequence[Request]) -> Results:
    """All texts of all settings."""
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
    """How each text relates to plain decoding's on the same engine.

    `yes`: it is the same. `near-tie`: it is the same up to a place where the target scores both
    tokens alike, closer than the rounding of a quantized model tells apart (`Judge`). `no`: a
    fault.
    """
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
                    judges[result.engine] = Judge(setting.loading, result.engine)
                verdict = judges[result.engine].verdict(request, expected, result.tokens)
            verdicts[setting][request] = verdict
    return verdicts


def tally(verdicts: Iterable[str]) -> str:
    """How many there are of each, the worst first."""
    found = Counter(verdicts)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in _VERDICTS if found[verdict])


def further(results: Iterable[GenerationResult]) -> tuple[int, float]:
    """Tokens after the first of each text, and the seconds they took."""
    pairs = [(r.new_tokens - 1, r.tpot_ms * (r.new_tokens - 1) / 1e3) for r in results]
    return sum(tokens for tokens, _ in pairs), sum(seconds for _, seconds in pairs)


def facts_of(bundle: Path) -> Mapping[str, object]:
    """What a benchmark's JSON says of its bundle."""
    found = bundles.load(bundle)
    return {
        "bundle": found.manifest.provenance,
        "parameters": {name: role.parameters for name, role in found.manifest.roles.items()},
        "precision": found.target.precision.weights,
    }


def _generate(setting: Setting, request: Request) -> GenerationResult:
    """In a worker: one text, as if it were the first, with the bundle loaded at the first."""
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


class Judge:
    """Scores the tokens at which two texts part, by the target on the engine that made them.

    A row's logits depend a little on the rows beside it: where activations are rounded to 8 bits,
    a last digit of the summation order flips a step of the rounding now and then, and the logits
    move by 2 % of their spread. So a near-tie is one if the target itself scores the two tokens
    alike in some company.
    """

    def __init__(self, loading: Loading, device: str) -> None:
        bundle = bundles.load(Path(loading.bundle))
        self._tokenizer = Tokenizer.from_folder(bundle.path)
        self._model = Model.load(bundle, bundles.TARGET, engine(device), loading.threads)

    def verdict(self, request: Request, expected: Sequence[int], found: Sequence[int]) -> str:
        """`near-tie` or `no`, for texts that are not equal."""
        pairs = list(zip(expected, found, strict=False))
        same = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
        if same is None:  # one ends where the other goes on
            return "no"
        prompt = request.prompt
        tokens = self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        place = len(tokens) + same
        for company in _COMPANIES:
            logits = self._logits(tokens, expected[:same], company)[: self._tokenizer.vocab_size]
            scores = logits.astype(np.float64)
            if request.temperature:
                noise = gumbel(request.seed, place, np.arange(scores.size))
                scores += request.temperature * noise
            behind = scores.max() - scores[list(pairs[same])].min()
            if behind <= _NEAR_TIE * logits.std():
                return "near-tie"
        return "no"

    def _logits(self, prompt: Sequence[int], made: Sequence[int], company: int) -> Floats:
        """The row behind what was made so far, `company` rows to a pass; 1 is plain decoding."""
        runner = Runner(self._model)
        logits = runner.prefill(prompt)["logits"][0]
        for start in range(0, len(made), company):
            part = made[start : start + company]
            n = len(part)
            rows = Rows(part, range(n), np.tri(n, dtype=np.bool_))
            logits = runner.verify(rows)["logits"][n - 1]
            runner.commit(range(n))
        return logits


def _show_progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done}/{of} texts", end="\n" if done == of else "", file=sys.stderr, flush=True)
