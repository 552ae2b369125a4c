"""Compares pipelines on simulated laptops: plain, partly offloaded, serial and overlapped decoding.

    python benchmarks/overlap.py [LAPTOP...] [--png FILE]

It runs the embedded pair in fp32 on simulated machines (docs/simulator.md), whose calls take as
long as those of the models stated for them. The quality of drafts is also given: the first guess is
the text's next token with a given probability, the second one in half of the other cases. Trees are
planned.

The last columns compare overlap with tokens / (s T_verify + (1 - h) T_draft). The tokens of a round
and the slowdown s of passes beside drafts are from the overlapped run, T_draft is from the serial
run, and h is the share of a serial draft's calls that were already made in a round of the
overlapped run. Both exclude the prompt's round and the next one, which feeds it to the draft.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from common import count, exit_code, print_result, print_table
from guesses import GuessedCalls, GuessedText

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET, Bundle
from edgespec.errors import InputError, MemoryLimitError
from edgespec.export import ExportOptions, export_bundle
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.costs.contention import slowdown
from edgespec.runtime.decoding.generate import PROMPT, Limits, generate
from edgespec.runtime.decoding.pipelines import Overlap, Payoff, Serial
from edgespec.runtime.deployment.deployment import Loaded, deploy, place_to_use, with_costs
from edgespec.runtime.deployment.deployment import load as load_models
from edgespec.runtime.deployment.options import LoadOptions
from edgespec.runtime.deployment.placement import GPU, parse
from edgespec.runtime.drafters import ModelDrafter, TreeBudget, in_one_step
from edgespec.runtime.drafters.acceptance import Calibration
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.planning import PlannedDrafter, PricedModel
from edgespec.runtime.sampling.sampler import Sampler, SamplingOptions
from edgespec.runtime.simulation import laptops, load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from edgespec.runtime.execution.feeds import Rows
    from edgespec.runtime.execution.runner import Results
    from edgespec.runtime.execution.steps import Steps
    from edgespec.runtime.trees.proposal import Proposal

_PROMPT = "def read_file(path):\n"
_ACCEPTANCE = (0.6, 0.75, 0.9)
_TREE = TreeBudget(31, 31, 4)
_WAYS = ("serial", "overlap", "auto")
# Where the target and the draft run, of the devices that a machine has.
_ROLES = (("cpu", "gpu"), ("npu", "cpu"), ("cpu", "cpu"))


@dataclass(frozen=True)
class Speed:
    """Speed of the rounds of a text, from the second on.

    Attributes:
        rate: tokens per second.
        tokens: tokens per round.
        draft: seconds of drafting per round.
        verify: seconds of the target's passes per round.
        calls: the draft's calls before a verification.
    """

    rate: float
    tokens: float
    draft: float
    verify: float
    calls: float


def main() -> None:
    arguments = _parse_arguments()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        bundle = _bundle(Path(scratch) / "whole")
        plain = LLM(bundle.path, draft="none", device="onnxruntime:cpu")
        text = plain.generate(_PROMPT, max_new_tokens=2 * arguments.new_tokens).tokens
        truth = [*plain.tokenizer.encode(_PROMPT), *text]
        for laptop in arguments.laptops:
            rows += _laptop(bundle, laptop, truth, arguments.new_tokens)
    header = list(rows[0])
    print_table(header, [list(row.values()) for row in rows])
    if arguments.png is not None:
        _draw(arguments.png, rows)
    print_result("overlap", {"simulated": True, "new_tokens": arguments.new_tokens, "rows": rows})


def _bundle(path: Path, cut_layers: tuple[int, ...] = ()) -> Bundle:
    """Returns the embedded pair in fp32, whose texts do not depend on the pipeline."""
    checkpoints, options = (
        BUNDLE.parent / "checkpoints",
        ExportOptions("fp32", cut_layers=cut_layers),
    )
    export_bundle(checkpoints / "python-7m", path, checkpoints / "python-1m", options)
    return bundles.load(path)


def _laptop(
    bundle: Bundle, laptop: str, truth: Sequence[int], new_tokens: int
) -> list[dict[str, Any]]:
    """Returns a row for each acceptance."""
    devices = load(laptop).devices
    target, draft = next(pair for pair in _ROLES if set(pair) <= devices.keys())
    plain = max(_plain(bundle, laptop, new_tokens, device=device) for device in devices)
    offloaded = _offloaded(bundle, laptop, new_tokens)
    options = LoadOptions(
        simulate=laptop, device=target, draft_device=draft, draft="model", threads=1
    )
    loaded = load_models(with_costs(deploy(bundle, options), always=True))
    factor = slowdown(loaded[TARGET].model, loaded[DRAFT].model) if target != draft else 1.0
    rows = []
    for acceptance in _ACCEPTANCE:
        speeds = {
            way: _speed(loaded, way, factor, GuessedText(truth, acceptance), new_tokens)
            for way in (_WAYS if target != draft else _WAYS[:1])
        }
        rows.append(
            {
                "laptop": laptop,
                "verifies": target,
                "drafts": draft,
                "acceptance": acceptance,
                "plain": round(plain, 2),
                "offload": round(offloaded, 2) or "-",
                **{way: round(speeds[way].rate, 2) if way in speeds else "-" for way in _WAYS},
                **_formula(speeds),
            }
        )
    return rows


def _plain(bundle: Bundle, laptop: str, new_tokens: int, **place: Any) -> float:
    """Returns tokens per second of the target alone; 0 if it does not fit."""
    try:
        llm = LLM(bundle.path, simulate=laptop, draft="none", **place)
    except MemoryLimitError:
        return 0.0
    return llm.generate(_PROMPT, max_new_tokens=new_tokens // 2).tokens_per_second


def _offloaded(bundle: Bundle, laptop: str, new_tokens: int) -> float:
    """Returns the same with as many layers as fit on a GPU with its own memory; 0 without one."""
    layers, options = bundle.target.layers, LoadOptions(simulate=laptop, draft="none")
    with tempfile.TemporaryDirectory() as scratch:
        anywhere = _bundle(Path(scratch) / "anywhere", tuple(range(1, layers)))
        place = place_to_use(anywhere, options)
        if place is None:
            return 0.0
        stated = load(laptop).models[TARGET].layers  # which the bundle's layers stand for
        first = parse(place, stated).index(GPU) * layers // stated
        once = _bundle(Path(scratch) / "once", (first,) if first else ())
        return _plain(once, laptop, new_tokens, place=place)


def _speed(
    loaded: Mapping[str, Loaded], way: str, factor: float, text: GuessedText, new_tokens: int
) -> Speed:
    runner = Runner(loaded[TARGET].model)
    calls = GuessedCalls(Runner(loaded[DRAFT].model), text)
    model = ModelDrafter(calls, Calibration())
    drafter = PlannedDrafter([[PricedModel(model, loaded[DRAFT].curve)]], loaded[TARGET].curve)
    made: Callable[[], Serial] = {
        "serial": lambda: Serial(runner, drafter),
        "overlap": lambda: Overlap(runner, drafter),
        "auto": lambda: Overlap(runner, drafter, Payoff(factor)),
    }[way]
    watched, sampler = Watched(made(), model), Sampler(SamplingOptions(), text.vocab_size)
    prompt = text.tokens[: len(text.tokens) // 4]
    limits = Limits(new_tokens, len(text.tokens), frozenset())
    rounds = generate(watched, sampler, prompt, limits=limits, budget=_TREE)
    _first, *steps = (step for step in rounds if step.source != PROMPT)
    passes, drafts = watched.passes[-len(steps) :], watched.drafts[-len(steps) :]
    tokens = sum(len(step.tokens) for step in steps)
    return Speed(
        rate=tokens / sum(step.seconds for step in steps),
        tokens=tokens / len(steps),
        draft=mean(drafts),
        verify=mean(passes),
        calls=mean(watched.calls[-len(steps) :]),
    )


def _formula(speeds: Mapping[str, Speed]) -> dict[str, Any]:
    """Returns the predicted speed of the overlapped run, and the share of it that was reached."""
    if "overlap" not in speeds:
        return dict.fromkeys(("tokens", "s", "h", "of formula"), "-")
    serial, overlap = speeds["serial"], speeds["overlap"]
    ahead = max(0.0, 1 - overlap.calls / serial.calls)
    expected = overlap.tokens / (overlap.verify + (1 - ahead) * serial.draft)
    return {
        "tokens": round(overlap.tokens, 2),
        "s": round(overlap.verify / serial.verify, 2),
        "h": round(ahead, 2),
        "of formula": round(overlap.rate / expected, 3),
    }


class Watched(Serial):
    """A pipeline that records the seconds of its parts in each round, and the draft's calls."""

    def __init__(self, pipeline: Serial, model: ModelDrafter) -> None:
        super().__init__(pipeline.target, pipeline.drafter)
        self._pipeline = pipeline
        self._model = model
        self.calls: list[int] = []
        self.drafts: list[float] = []
        self.passes: list[float] = []

    def draft(self, text: Sequence[int], budget: TreeBudget) -> Proposal:
        """See `Serial`."""
        self._model.fed, self._model.levels = [], []  # the planner may leave it out
        begin = time.perf_counter()
        proposal = self._pipeline.draft(text, budget)
        self.drafts.append(time.perf_counter() - begin)
        self.calls.append(len(self._model.fed) + len(self._model.levels))
        return proposal

    def drafting(self, text: Sequence[int], budget: TreeBudget) -> Steps[Proposal]:
        """See `Serial`."""
        return in_one_step(self.draft, text, budget)

    def verify(self, rows: Rows) -> Results:
        """See `Serial`."""
        begin = time.perf_counter()
        results = self._pipeline.verify(rows)
        self.passes.append(time.perf_counter() - begin)
        return results


def _draw(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["laptop"] for row in rows))
    figure = Figure(figsize=(4 * len(names), 4), layout="constrained")
    for place, name in enumerate(names, 1):
        axes = figure.add_subplot(1, len(names), place)
        mine = [row for row in rows if row["laptop"] == name]
        for color, way in enumerate(("plain", "offload", "serial", "overlap")):
            points = [(row["acceptance"], row[way]) for row in mine if row[way] != "-"]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=way, color=f"C{color}")
        axes.set(title=f"{name} (simulated)", xlabel="acceptance", ylim=(0, None))
        axes.set_xticks(_ACCEPTANCE)
        axes.legend()
    figure.axes[0].set_ylabel("tokens/s")
    figure.savefig(file)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Pipelines on simulated laptops.")
    parser.add_argument(
        "laptops",
        nargs="*",
        metavar="LAPTOP",
        help="simulated machines (default: all of the package)",
    )
    parser.add_argument(
        "--new-tokens", type=count, default=64, help="tokens of each text (default 64)"
    )
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the speeds to this file")
    arguments = parser.parse_args()
    for name in arguments.laptops:
        if name not in laptops():
            raise InputError(f"laptop {name!r} is not known: use one of {', '.join(laptops())}")
    arguments.laptops = arguments.laptops or laptops()
    return arguments


if __name__ == "__main__":
    sys.exit(exit_code(main))
