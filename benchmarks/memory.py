"""Compares the memory that `edgespec plan` predicts with what `edgespec run` uses.

    python benchmarks/memory.py models/embedded/bundle wide-bundle other-bundle
    python benchmarks/memory.py uncut cut --drafts none,layer-skip --contexts 512 --to-first

Each bundle runs in a separate process, on each engine, with each of its draft sources and each
context length. The prompt fills the context except for `--new-tokens`. The anonymous plus shared
memory of all its processes is polled. A bundle of more than 256 MiB also runs with a memory limit
of `--limit` times its target's weights, and the context and draft that fit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import count, counts, exit_code, print_result, print_table, watch

from edgespec import bundle as bundles
from edgespec.measuring.prompts import PYTHON
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.environment import MIB

_EDGESPEC = [sys.executable, "-m", "edgespec"]
_LARGE = 256 * MIB


@dataclass(frozen=True)
class Outcome:
    """One run; sizes in MiB.

    Attributes:
        context: Planned tokens of prompt and output.
        draft: Planned draft source.
        limit: Memory limit; 0: all free memory.
        plan: Total of the plan.
        peak: Peak of the run.
    """

    bundle: str
    engine: str
    context: int
    draft: str
    chunk: int
    limit: float
    plan: float
    peak: float

    @property
    def ratio(self) -> float:
        """Ratio of the peak to the plan."""
        return round(self.peak / self.plan, 3)

    def to(self, others: Sequence[Outcome]) -> float | str:
        """Peak to that of the first run with the same engine, context and limit, if any."""
        mine = (self.engine, self.context, self.limit)
        alike = [o.peak for o in others if (o.engine, o.context, o.limit) == mine]
        return round(self.peak / alike[0], 3) if alike else "-"


def main() -> None:
    arguments = _parse_arguments()
    outcomes = []
    for path in arguments.bundles:
        for engine in arguments.engines.split(","):
            for options in _settings(path, engine, arguments):
                outcomes.append(_measure(path, engine, options, arguments.new_tokens))
                print(f"{path.name}: {outcomes[-1]}", file=sys.stderr, flush=True)
    header = ["bundle", "engine", "context", "draft", "chunk", "limit", "plan", "peak"]
    lines = [[*(getattr(o, name) for name in header), o.ratio] for o in outcomes]
    header.append("peak/plan")
    if arguments.to_first:
        header.append("to first")
        for line, outcome in zip(lines, outcomes, strict=True):
            line.append(outcome.to(outcomes))
    print_table(header, lines)
    worst = max(abs(o.ratio - 1) for o in outcomes)
    values = [{**asdict(o), "ratio": o.ratio, "to_first": o.to(outcomes)} for o in outcomes]
    print_result("memory", {"runs": values, "worst_error": round(worst, 3)})


def _settings(path: Path, engine: str, arguments: argparse.Namespace) -> Iterator[list[str]]:
    """Yields the options of each run of a bundle on an engine."""
    bundle = bundles.load(path)
    weights = bundle.role_size(bundles.TARGET)
    for draft in arguments.drafts.split(","):
        if draft == "layer-skip" and not bundle.manifest.skip_sets:
            continue
        options = [f"--device={engine}", f"--draft-device={engine}", f"--draft={draft}"]
        for context in arguments.contexts:
            yield [*options, f"--context={context}"]
        if arguments.limit and weights > _LARGE:
            yield [*options, f"--memory={weights * arguments.limit / MIB:.0f}MiB"]


def _measure(path: Path, engine: str, options: list[str], new_tokens: int) -> Outcome:
    plan = _plan(path, options)
    device = plan["devices"][0]
    with tempfile.TemporaryDirectory() as folder:
        prompt = Path(folder) / "prompt.txt"
        prompt.write_text(_text(path, plan["context"] - new_tokens), encoding="utf-8")
        # The longest text comes first, so that what is made once is counted.
        run = [*_EDGESPEC, "run", str(path), "-f", str(prompt), "-n", str(new_tokens), "--json"]
        peak = watch([*run, *options], quiet=True).peak_mib
    limited = any(option.startswith("--memory") for option in options)
    return Outcome(
        bundle=path.name,
        engine=engine,
        context=plan["context"],
        draft=plan["draft"],
        chunk=plan["prefill_chunk"],
        limit=device["limit_mb"] if limited else 0.0,
        plan=device["total_mb"],
        peak=round(peak, 1),
    )


def _plan(path: Path, options: list[str]) -> dict[str, Any]:
    command = [*_EDGESPEC, "plan", str(path), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def _text(path: Path, tokens: int) -> str:
    """Returns Python code, or words of the vocabulary, of at most this many tokens."""
    tokenizer = Tokenizer.from_folder(path)
    text = "".join(PYTHON)
    if len(tokenizer.encode(text)) < len(PYTHON):
        text = "".join(f" w{number}" for number in range(tokens))
    while len(tokenizer.encode(text)) < tokens:
        text += text
    ids = tokenizer.encode(text)
    while len(tokenizer.encode(text := tokenizer.decode(ids[:tokens]))) > tokens:
        ids = ids[:-1]
    return text


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Planned and real memory.")
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument(
        "--contexts",
        type=counts,
        default=[512, 2048],
        help="context lengths in tokens (default 512,2048)",
    )
    parser.add_argument(
        "--drafts", default="auto", help="sources, as edgespec run takes them (default %(default)s)"
    )
    parser.add_argument(
        "--engines",
        default="onnxruntime:cpu,openvino:cpu",
        help="full names of engines (default both)",
    )
    parser.add_argument(
        "--new-tokens", type=count, default=16, help="tokens of each text (default 16)"
    )
    parser.add_argument(
        "--limit", type=float, default=1.5, metavar="FACTOR",
        help="of a large bundle's weights; half precision takes more than twice them on ONNX "
        "Runtime; 0: no such run (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--to-first", action="store_true", help="compare with the first bundle's first source"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
