"""Compares the memory that a bundle is planned to need with what `edgespec run` uses.

    python benchmarks/memory.py BUNDLE... --contexts 512,2048

Each bundle runs in a separate process, with each draft source and each context length. The prompt
fills the context except for `--new-tokens`. The anonymous plus shared memory of all its processes
is polled: pages of mapped weights do not count, as the system can reclaim them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from common import count, counts, exit_code, names, print_result, print_table, watch

from edgespec import bundle as bundles
from edgespec.llm.load.options import DRAFTS, LoadOptions
from edgespec.llm.load.place import plan_memory
from edgespec.measuring.prompts import PYTHON
from edgespec.runtime.plan import HOST
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.environment import MIB


@dataclass(frozen=True)
class Outcome:
    """One run; sizes in MiB, of the process's own memory.

    Attributes:
        bundle: name of its folder.
        context: tokens of prompt and output.
        draft: the draft source.
        plan: total of the plan.
        mapped: weights that are mapped from their file, and not part of the total.
        peak: peak of the run.
        ratio: peak by plan.
    """

    bundle: str
    context: int
    draft: str
    plan: float
    mapped: float
    peak: float
    ratio: float


def main() -> None:
    arguments = _parse_arguments()
    outcomes = [
        _measure(path, draft, context, arguments)
        for path in arguments.bundles
        for draft in arguments.drafts
        for context in arguments.contexts
    ]
    rows = [list(asdict(each).values()) for each in outcomes]
    print_table(["bundle", "context", "draft", "plan", "mapped", "peak", "peak/plan"], rows)
    worst = max(abs(each.ratio - 1) for each in outcomes)
    runs = [asdict(each) for each in outcomes]
    print_result("memory", {"runs": runs, "worst_error": round(worst, 3)})


def _measure(path: Path, draft: str, context: int, arguments: argparse.Namespace) -> Outcome:
    options = LoadOptions(device=arguments.device, draft=draft, context=context)
    demands = plan_memory(bundles.load(path), options).demands
    demand = next(each for each in demands if each.memory == HOST)
    with tempfile.TemporaryDirectory() as folder:
        prompt = Path(folder) / "prompt.txt"
        prompt.write_text(_text(path, context - arguments.new_tokens), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "edgespec",
            "run",
            str(path),
            "--raw",
            "--json",
            "-f",
            str(prompt),
            f"-n={arguments.new_tokens}",
            f"--draft={draft}",
            f"--context={context}",
            f"--device={arguments.device}",
        ]
        peak = watch(command, quiet=True).peak_mib
    plan = round(demand.total / MIB, 1)
    mapped = round(demand.mapped / MIB, 1)
    ratio = round(peak / plan, 3)
    return Outcome(path.name, context, draft, plan, mapped, round(peak, 1), ratio)


def _text(path: Path, tokens: int) -> str:
    """Returns Python code of at most this many tokens."""
    tokenizer = Tokenizer.from_folder(path)
    text = "".join(PYTHON)
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
        "--drafts",
        type=lambda text: names(text, DRAFTS),
        default=["none", "auto"],
        help="draft sources (default none,auto)",
    )
    parser.add_argument("--device", default="cpu", help="device of the target (default cpu)")
    parser.add_argument(
        "--new-tokens", type=count, default=16, help="tokens of each text (default 16)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
