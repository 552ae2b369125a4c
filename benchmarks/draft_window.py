"""Measures how often a draft model guesses the target's choice, by the window that it sees.

    python benchmarks/draft_window.py BUNDLE --text runtime/*/*.py --windows 512,1024,2048

Both models read the same text. At each of its last tokens counts whether what the draft model
finds likeliest is what the target does: the share of guesses that would be accepted. The window
moves on by half its size, as in texts (`ModelCalls`). `--first` puts so many tokens of the text's
beginning before each window, as attention sinks (Xiao et al., StreamingLLM, 2024).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import add_threads, count, counts, exit_code, print_result, print_table

from edgespec import bundle as bundles
from edgespec.bundle import DRAFT, TARGET
from edgespec.runtime.engines import engine
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgespec.runtime.arrays import Array

_CALL_ROWS = 64


def main() -> None:
    arguments = _parse_arguments()
    bundle = bundles.load(arguments.bundle)
    text = "\n".join(path.read_text("utf-8") for path in arguments.text)
    tokens = Tokenizer.from_folder(bundle.path).encode(text)[: arguments.tokens]
    begin = len(tokens) - arguments.scored
    if begin < max(arguments.windows):
        raise SystemExit(f"the text has {len(tokens)} tokens: give a longer one")
    asked = arguments.device, arguments.threads
    target = Runner(Model.load(bundle, TARGET, engine(asked[0]), asked[1]))
    target.prefill(tokens[:begin])
    wanted = _likeliest(target, tokens[begin:])
    del target
    draft = Runner(Model.load(bundle, DRAFT, engine(asked[0]), asked[1]))
    lines = []
    for window in (*arguments.windows, len(tokens) + 1):
        for first in (0, *arguments.first) if window <= begin else (0,):
            started = time.process_time()
            guesses = _guesses(draft, tokens, begin, window, first)
            share = round(float((guesses == wanted).mean()), 4)
            lines.append((window, first, share, round(time.process_time() - started, 1)))
    print_table(["window", "first", "accepted", "processor s"], lines)
    print_result(
        "draft_window",
        {
            "bundle": bundle.manifest.provenance,
            "tokens": len(tokens),
            "scored": arguments.scored,
            "device": arguments.device,
            "threads": arguments.threads,
            "accepted": lines,
        },
    )


def _guesses(draft: Runner, tokens: Sequence[int], begin: int, window: int, first: int) -> Array:
    """Returns the draft's likeliest tokens behind each token from `begin` on."""
    half, found, at = window // 2, [], begin
    while at < len(tokens):
        start = -(-max(0, at + 1 - window) // half) * half  # where `ModelCalls` would begin
        end = min(len(tokens), start + window) if window <= len(tokens) else len(tokens)
        draft.resume(())
        draft.prefill([*tokens[:first], *tokens[start:at]] if start else tokens[:at])
        found.append(_likeliest(draft, tokens[at:end]))
        at = end
    return np.concatenate(found)


def _likeliest(runner: Runner, tokens: Sequence[int]) -> Array:
    """Returns the likeliest token behind each of these, which are committed."""
    found = []
    for part in runner.score(tokens, _CALL_ROWS):  # whose arrays are the next part's as well
        ids = part["top_ids"][:, 0] if "top_ids" in part else part["logits"].argmax(axis=1)
        found.append(ids.copy())
    return np.concatenate(found)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Acceptance by a draft model's window.")
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="files to read")
    parser.add_argument("--tokens", type=count, default=5120, help="read so many (default 5120)")
    parser.add_argument("--scored", type=count, default=2048, help="the last ones (default 2048)")
    parser.add_argument("--windows", type=counts, default=[512, 1024, 2048])
    parser.add_argument("--first", type=counts, default=[], help="tokens kept of the beginning")
    parser.add_argument("--device", default="openvino:cpu", help="engine (default openvino:cpu)")
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
