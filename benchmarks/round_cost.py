"""Measures the cost of a round in Python: decoding time that is not spent in the engines.

    python benchmarks/round_cost.py

It runs the embedded pair (or BUNDLE) and random two-layer pairs with a vocabulary of 151,936,
greedy and with top-p 0.9, on trees of 8 nodes; the embedded pair also without drafts, to show what
drafts add. The cost is a result's time after the first token minus its `engine_ms`, per round. A
second run with a stopwatch on each step shows the parts.

Then it measures what planning adds with `--draft auto`, on flat cost curves, so that trees have 16
nodes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
from common import add_threads, count, exit_code, print_result, print_table
from given_costs import given_costs
from random_pair import RandomPair

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.export import ExportOptions, export_bundle
from edgespec.measuring.prompts import PYTHON
from edgespec.runtime.decoding.pipelines import Serial
from edgespec.runtime.drafters import LookupDrafter, ModelDrafter, RecyclingDrafter, in_one_step
from edgespec.runtime.engines.cpu.onnxruntime import OnnxRuntimeExecutable
from edgespec.runtime.engines.cpu.openvino import OpenVinoExecutable
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.planning import PlannedDrafter, priced
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.text.streaming import StreamDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from edgespec.api.result import GenerationResult
    from edgespec.runtime.drafters import Drafter, TreeBudget
    from edgespec.runtime.execution.steps import Steps
    from edgespec.runtime.trees.proposal import Proposal

_TREE: dict[str, Any] = {"num_assistant_tokens": 8, "tree_width": 4}
_MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "top-p 0.9": {"temperature": 1.0, "top_p": 0.9, "seed": 1},
}
_VOCABULARY = 151_936
_RANDOM = {"peaked": 8.0, "flat": 1.0}  # the logits' standard deviation
_PLANNED_NODES = 16
_PLANNING_BAR_MS = 0.2
_PROMPTS = 8
_PROMPT_TOKENS = 32  # of the random pairs
_ENGINES = "engines"
_ENGINE_CALLS: tuple[tuple[str, type, str], ...] = (
    (_ENGINES, OnnxRuntimeExecutable, "run"),
    (_ENGINES, OpenVinoExecutable, "run"),
)
_STEPS = (
    *_ENGINE_CALLS,
    ("draft", ModelDrafter, "draft"),
    ("verify", Runner, "verify"),
    ("choose", Sampler, "choose"),
    ("commit", Runner, "commit"),
    ("observe", ModelDrafter, "observe"),
    ("text", StreamDecoder, "push"),
)
_PLANNING_STEPS = (
    *_ENGINE_CALLS,
    ("planning", PlannedDrafter, "draft"),
    ("planning", PlannedDrafter, "observe"),
    ("looking up", LookupDrafter, "extend"),
    ("recycling", RecyclingDrafter, "extend"),
    ("learning", RecyclingDrafter, "observe"),
    ("model", ModelDrafter, "draft"),
    ("model", ModelDrafter, "observe"),
)


@dataclass(frozen=True)
class Subject:
    """A pair to measure.

    Attributes:
        name: Name in the table.
        llm: The loaded pair.
        prompts: Texts or token ids.
        bar_ms: Maximum milliseconds wanted; None: no limit.
        drafts: Options for generating its texts.
    """

    name: str
    llm: LLM
    prompts: Sequence[str | list[int]]
    bar_ms: float | None
    drafts: dict[str, Any] = field(default_factory=lambda: _TREE)


@dataclass(frozen=True)
class Cost:
    """The cost of a round of one pair in one mode.

    Attributes:
        pair: Name of the pair.
        mode: Name of a mode of `_MODES`.
        ms: Milliseconds outside of the engines, the median over texts.
        bar_ms: Maximum milliseconds wanted; None: no limit.
        nodes: Mean number of nodes of a tree.
        tokens: Mean number of tokens of a round.
        engine: The target's engine.
        steps_ms: Milliseconds of each step.
    """

    pair: str
    mode: str
    ms: float
    bar_ms: float | None
    nodes: float
    tokens: float
    engine: str
    steps_ms: dict[str, float]


def main() -> None:
    arguments = _parse_arguments()
    costs = [cost for subject in _subjects(arguments) for cost in _measure(subject, arguments)]
    steps = [*dict.fromkeys(name for name, _, _ in _STEPS if name != _ENGINES), "rest"]
    print_table(
        ["pair", "mode", "ms/round", "wanted", "nodes", "tokens", *steps],
        [
            [c.pair, c.mode, c.ms, c.bar_ms or "-", c.nodes, c.tokens]
            + [c.steps_ms[step] for step in steps]
            for c in costs
        ],
    )
    planning = [_planning(mode, arguments) for mode in _MODES]
    bar = f"planning wanted: at most {_PLANNING_BAR_MS} ms"
    print(f"\nauto, up to {_PLANNED_NODES} nodes, ms/round ({bar})\n")
    print_table(
        ["mode", *planning[0]], [[m, *p.values()] for m, p in zip(_MODES, planning, strict=True)]
    )
    print_result(
        "round_cost",
        {
            "threads": arguments.threads,
            "new_tokens": arguments.new_tokens,
            "generations": arguments.repeat,
            **_TREE,
            "vocabulary_of_random_pairs": _VOCABULARY,
            "costs": [asdict(cost) for cost in costs],
            "planning_ms": dict(zip(_MODES, planning, strict=True)),
            "planning_wanted_ms": _PLANNING_BAR_MS,
        },
    )


def _subjects(arguments: argparse.Namespace) -> Iterator[Subject]:
    llm = LLM(arguments.bundle, threads=arguments.threads, draft="model")
    name = "embedded" if arguments.bundle is None else arguments.bundle.name
    yield Subject(f"{name}, no drafts", llm, PYTHON, None, {"draft_source": "none"})
    yield Subject(name, llm, PYTHON, bar_ms=0.5)
    prompts = np.random.default_rng(0).integers(_VOCABULARY, size=(_PROMPTS, _PROMPT_TOKENS))
    for name, std in _RANDOM.items():
        with tempfile.TemporaryDirectory() as scratch:
            target, draft, bundle = (Path(scratch) / part for part in ("target", "draft", "bundle"))
            RandomPair(_VOCABULARY, std).write(target, draft)
            export_bundle(target, bundle, draft, ExportOptions(precision="int8"))
            llm = LLM(bundle, threads=arguments.threads, draft="model")
            yield Subject(f"random, {name}", llm, prompts.tolist(), bar_ms=3.0)


def _measure(subject: Subject, arguments: argparse.Namespace) -> Iterator[Cost]:
    """Returns a line for each mode; modes take turns."""
    results: dict[str, list[GenerationResult]] = defaultdict(list)
    for turn in range(-1, arguments.repeat):
        for mode in _MODES:
            result = _generate(subject, mode, turn, arguments.new_tokens)
            if turn >= 0 and result.rounds:  # the first one warms up
                results[mode].append(result)
    for mode, made in results.items():
        rounds = sum(result.rounds for result in made)
        yield Cost(
            subject.name,
            mode,
            round(median(_outside_ms(result) / result.rounds for result in made), 3),
            subject.bar_ms,
            round(sum(result.drafted for result in made) / rounds, 2),
            round(sum(result.new_tokens - 1 for result in made) / rounds, 2),
            made[0].engine,
            _breakdown(subject, mode, arguments.new_tokens),
        )


def _generate(subject: Subject, mode: str, turn: int, new_tokens: int) -> GenerationResult:
    prompt = subject.prompts[turn % len(subject.prompts)]
    return subject.llm.generate(prompt, max_new_tokens=new_tokens, **subject.drafts, **_MODES[mode])


def _outside_ms(result: GenerationResult) -> float:
    return result.tpot_ms * (result.new_tokens - 1) - result.engine_ms


def _breakdown(subject: Subject, mode: str, new_tokens: int) -> dict[str, float]:
    """Returns the milliseconds of each step per round, from other texts: watching costs time."""
    results, steps = _watched(_STEPS, lambda turn: _generate(subject, mode, turn, new_tokens))
    rounds = sum(result.rounds for result in results)
    steps["rest"] = sum(map(_outside_ms, results)) - sum(steps.values())
    return {name: round(spent / rounds, 3) for name, spent in steps.items()}


def _planning(mode: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Returns nodes, and milliseconds per round of each planning step, on the embedded pair."""
    options = {"max_new_tokens": arguments.new_tokens, "num_assistant_tokens": _PLANNED_NODES}
    with given_costs({bundles.TARGET: {1: 1e-2}, bundles.DRAFT: {1: 1e-4}}):
        llm = LLM(arguments.bundle, threads=arguments.threads)
        for prompt in PYTHON:  # so that all sources have something to propose
            llm.generate(prompt, **options, **_MODES[mode])
        results, steps = _watched(
            _PLANNING_STEPS, lambda turn: llm.generate(PYTHON[turn], **options, **_MODES[mode])
        )
    rounds = sum(result.rounds for result in results)
    shares = {name: round(spent / rounds, 3) for name, spent in steps.items()}
    return {"nodes": round(sum(result.drafted for result in results) / rounds, 1), **shares}


def _watched(
    steps: Sequence[tuple[str, type, str]], make: Callable[[int], GenerationResult]
) -> tuple[list[GenerationResult], dict[str, float]]:
    """Generates texts; returns them and the milliseconds of each step, without the engines."""
    watch = _Stopwatch()
    with ExitStack() as stack:
        # Steps of a generator cannot be watched, so each draft is made in one.
        stack.enter_context(patch.object(Serial, "drafting", _in_one_step))
        stack.enter_context(patch.object(priced, "drafting", _in_one_step))
        for step in steps:
            stack.enter_context(watch.on(*step))
        results = [make(turn) for turn in range(_PROMPTS)]
    names = dict.fromkeys(name for name, _, _ in steps if name != _ENGINES)
    return results, {name: watch.seconds[name] * 1e3 for name in names}


def _in_one_step(
    drafter: Drafter | Serial, text: Sequence[int], budget: TreeBudget
) -> Steps[Proposal]:
    return in_one_step(drafter.draft, text, budget)


class _Stopwatch:
    """Measures the seconds in watched methods, without those in watched methods that they call."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = [0.0]

    def on(self, name: str, owner: type, method: str) -> AbstractContextManager[object]:
        """Watches calls of a method under a name, until the context ends."""
        original = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            begin = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                spent = time.perf_counter() - begin
                self.seconds[name] += spent - self._inside.pop()
                self._inside[-1] += spent

        return patch.object(owner, method, timed)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Python's share of a decoding round.")
    parser.add_argument("bundle", type=Path, nargs="?", help="default: the embedded pair")
    parser.add_argument(
        "--new-tokens", type=count, default=64, help="tokens of each text (default 64)"
    )
    parser.add_argument(
        "--repeat", type=count, default=8, help="texts; the median is reported (default 8)"
    )
    add_threads(parser)
    arguments = parser.parse_args()
    if arguments.new_tokens < 2:
        parser.error("--new-tokens 1: the first token needs no round, give 2 or more")
    return arguments


if __name__ == "__main__":
    sys.exit(exit_code(main))
