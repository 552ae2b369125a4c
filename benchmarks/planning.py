"""Evaluates `--draft auto` with given costs of calls, so that load on the machine has no effect.

    python benchmarks/planning.py --prompts HumanEval.jsonl --limit 40
    python benchmarks/planning.py BUNDLE --prompts HumanEval.jsonl --limit 40

A small pair generates the texts, and every call counts with the time of a large pair on some
machine (`_MACHINES`). The planner gets these costs; its own time does not count, so that
differences of 1 % are significant. This requires that texts stay the same, so use a bundle in fp16
or fp32. A bundle whose draft is a copy of its target shows the limit for better drafts.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import patch

from common import add_threads, count, exit_code, print_result, print_table
from given_costs import given_costs

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.measuring.prompts import read_prompts
from edgespec.runtime.drafters import TreeBudget
from edgespec.runtime.planning import PlannedDrafter, PricedModel, planned_drafter, priced

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from edgespec.runtime.arrays import Floats
    from edgespec.runtime.trees.company import PassCost
    from edgespec.runtime.trees.tree import TokenTree
    from edgespec.runtime.trees.walk import Verdict


@dataclass(frozen=True)
class Machine:
    """Costs of calls of a pair with 1.1 B and 77 M parameters on a machine.

    Attributes:
        engine: name of the engine whose shapes calls have.
        target: milliseconds of the target's calls by rows.
        draft: milliseconds of the draft's calls by rows.
    """

    engine: str
    target: dict[int, float]
    draft: dict[int, float]

    @property
    def costs(self) -> dict[str, dict[int, float]]:
        """Seconds by role and rows."""
        by_role = {bundles.TARGET: self.target, bundles.DRAFT: self.draft}
        return {role: {rows: ms / 1e3 for rows, ms in by.items()} for role, by in by_role.items()}


# Seen on AMD EPYC (AVX2 only) and on Intel Xeon (Sapphire Rapids), 2 threads each.
_MACHINES = {
    "int4 without VNNI": Machine(
        "onnxruntime:cpu",
        {1: 25.2, 2: 32.6, 3: 46.2, 4: 56.8, 5: 69.5, 6: 80, 8: 104, 10: 128, 12: 151, 16: 200},
        {1: 2.06, 2: 2.47, 3: 3.5, 4: 4.32, 5: 5.23, 6: 6.05, 8: 7.8, 16: 14.6},
    ),
    "int4 with AMX": Machine(
        "openvino:cpu",
        {1: 42.7, 2: 44.5, 4: 48.6, 8: 53.7, 16: 77},
        {1: 2.99, 4: 3.1, 8: 3.63, 16: 5.26, 32: 8.49},
    ),
}


@dataclass(frozen=True)
class Outcome:
    """All texts of one temperature on one machine.

    Attributes:
        machine: name of a machine of `_MACHINES`.
        temperature: sampling temperature.
        tokens_per_second: tokens per second over all texts.
        to_plain: ratio to the speed of plain decoding.
        tokens: tokens per round.
        nodes: nodes per tree.
        pass_ms: milliseconds of the target per round.
        draft_ms: milliseconds of the draft model per round, over all rounds.
        asked: share of the rounds that use the draft model.
    """

    machine: str
    temperature: float
    tokens_per_second: float
    to_plain: float
    tokens: float
    nodes: float
    pass_ms: float
    draft_ms: float
    asked: float


class _Clock:
    """A clock that only the given costs of calls advance."""

    def __init__(self) -> None:
        self.passes = self.drafts = 0.0
        self.asked = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which it does; for the planner, too."""
        observe, price = PlannedDrafter.observe, PricedModel._price

        def after_pass(
            planner: PlannedDrafter, verdict: Verdict, tree: TokenTree, logits: Floats
        ) -> None:
            self.passes += planner._verify(len(tree) + 1)
            observe(planner, verdict, tree, logits)

        def after_draft(
            source: PricedModel, budget: TreeBudget, capacity: int, costs: Sequence[PassCost]
        ) -> None:
            price(source, budget, capacity, costs)
            self.drafts += source.seconds
            self.asked += 1

        still = SimpleNamespace(perf_counter=lambda: 0.0)
        with (
            patch.object(planned_drafter, "time", still),
            patch.object(priced, "time", still),
            patch.object(PlannedDrafter, "observe", after_pass),
            patch.object(PricedModel, "_price", after_draft),
        ):
            yield


def main() -> None:
    arguments = _parse_arguments()
    prompts = read_prompts(arguments.prompts, arguments.limit)
    outcomes = [
        outcome
        for name, machine in _MACHINES.items()
        for outcome in _judge(name, machine, prompts, arguments)
    ]
    print_table([each.name for each in fields(Outcome)], list(map(astuple, outcomes)))
    settings = {"prompts": len(prompts), "new_tokens": arguments.new_tokens}
    print_result("planning", {**settings, "outcomes": [asdict(each) for each in outcomes]})


def _judge(
    name: str, machine: Machine, prompts: Sequence[str], arguments: argparse.Namespace
) -> list[Outcome]:
    outcomes, device = [], machine.engine
    with given_costs(machine.costs):
        llm = LLM(arguments.bundle, device=device, draft_device=device, threads=arguments.threads)
        for temperature in arguments.temperatures:
            clock, made = _Clock(), []
            with clock.running():
                for prompt in prompts:
                    llm.forget()
                    options = {"max_new_tokens": arguments.new_tokens, "temperature": temperature}
                    made.append(llm.generate(prompt, seed=1, **options))
            rounds, new = sum(r.rounds for r in made), sum(r.new_tokens - 1 for r in made)
            rate = new / (clock.passes + clock.drafts)
            outcomes.append(
                Outcome(
                    name,
                    temperature,
                    tokens_per_second=round(rate, 2),
                    to_plain=round(rate * machine.target[1] / 1e3, 3),
                    tokens=round(new / rounds, 3),
                    nodes=round(sum(r.drafted for r in made) / rounds, 2),
                    pass_ms=round(clock.passes / rounds * 1e3, 1),
                    draft_ms=round(clock.drafts / rounds * 1e3, 1),
                    asked=round(clock.asked / rounds, 2),
                )
            )
    return outcomes


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What auto decides, judged by given costs.")
    parser.add_argument("bundle", type=Path, nargs="?", help="default: the embedded pair")
    parser.add_argument("--prompts", type=Path, action="append", default=[])
    parser.add_argument("--limit", type=count, help="maximum number of prompts")
    parser.add_argument(
        "--new-tokens", type=count, default=128, help="tokens of each text (default 128)"
    )
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
