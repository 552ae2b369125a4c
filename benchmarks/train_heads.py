"""Trains heads of several kinds for one model and measures each, in minutes of a lent GPU.

    python benchmarks/train_heads.py qwen-0.5b.gguf -o heads --device cuda --minutes 8
    python benchmarks/train_heads.py BUNDLE -o heads --device cpu --minutes 2 --kinds eagle3 \
        --training --no-generate --text code.txt --window 64 --batch 128

The minutes are for all kinds together. The model writes its texts for the first kind, and the
others learn from the same. The second line goes the same way on a CPU. What was trained is kept;
the same command goes on with it, and --minutes 0 measures alone, on the CPU that will use it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import exit_code, facts_of, names, print_result, print_table

from edgespec.bundle import MANIFEST
from edgespec.errors import InputError
from edgespec.training.options import EAGLE3, KINDS, MTP

_TEXTS = Path(".training/shards")
_NEW = [kind for kind in KINDS if kind != MTP]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL", help="a bundle, GGUF file or checkpoint")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument(
        "--kinds",
        type=lambda text: names(text, _NEW),
        default=[EAGLE3, "dflash"],
        metavar="KIND,KIND",
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training (default: 8)")
    parser.add_argument("--limit", default="4", help="prompts that are measured (default: 4)")
    parser.add_argument(
        "--training", nargs=argparse.REMAINDER, default=[], help="further options of train-draft"
    )
    arguments = parser.parse_args()
    kinds = arguments.kinds
    output: Path = arguments.output
    plain = Path(arguments.model)
    if not (plain / MANIFEST).is_file():
        plain = output / "plain"
        if not plain.exists():
            edgespec("export", arguments.model, "--draft", "none", "-o", plain)
    found = {}
    for kind in kinds:
        head = output / kind
        if arguments.minutes:
            take_texts(output / kinds[0], head)
            limits = ("--minutes", arguments.minutes / len(kinds), "--device", arguments.device)
            words = ("train-draft", plain, "-o", head, "--kind", kind, *limits)
            edgespec(*words, *arguments.training)
        found[kind] = {**learned(head), **measured(plain, head, arguments.limit)}
    header = ["kind", *next(iter(found.values()))]
    print_table(header, [[kind, *map(str, each.values())] for kind, each in found.items()])
    print_result("train_heads", {**facts_of(plain), "found": found})


def take_texts(first: Path, head: Path) -> None:
    """Gives a head that is not begun the texts that another one learned from."""
    texts = sorted((first / _TEXTS).glob("*.npz"))
    if not head.exists() and texts:
        (head / _TEXTS).mkdir(parents=True)
        for text in texts:
            shutil.copy(text, head / _TEXTS)


def learned(head: Path) -> dict[str, Any]:
    """Returns what a head says of its training."""
    if not (head / "config.json").is_file():
        raise InputError(f"{head} holds no head: give --minutes, in which it is trained")
    facts = json.loads((head / "config.json").read_text("utf-8"))["edgespec"]
    return {name: facts[name] for name in ("tokens", "minutes", "acceptance")}


def measured(plain: Path, head: Path, limit: str) -> dict[str, Any]:
    """Returns what the head brings the model on this machine's CPU, on code."""
    bundle = head.with_name(f"{head.name}-bundle")
    shutil.rmtree(bundle, ignore_errors=True)
    edgespec("export", plain, "--draft", head, "-o", bundle)
    told = edgespec("bench", bundle, "--draft", "head", "--limit", limit, "--json")
    best = json.loads(told.splitlines()[-1])["settings"][-1]
    return {
        "tokens a round": best["mean_accepted_length"],
        "of plain's speed": best["speedup_vs_plain"],
        "same": best["equal_to_plain"],
    }


def edgespec(*words: object) -> str:
    """Runs a command of edgespec, whose failure ends this program; returns what it prints."""
    command: Sequence[str] = [sys.executable, "-m", "edgespec", *map(str, words)]
    print("$", *command[2:], file=sys.stderr, flush=True)
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


if __name__ == "__main__":
    sys.exit(exit_code(main))
