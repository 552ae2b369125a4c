r"""Measures what rounding activations costs: a native graph against the same weights in float32.

    python benchmarks/rounding.py BUNDLE --text FILE

Weights are those of the bundle in both: the portable graph of the same tiles, with activations in
float32, is the reference. Rows are those of the text, read in passes of 256 tokens, each of which
begins anew.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import add_threads, count, exit_code, print_result, print_table

from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.errors import InputError
from edgespec.llm.load.graphs import GraphOpener
from edgespec.llm.load.models import load_model
from edgespec.measuring.perplexity import Scores
from edgespec.runtime.arrays import Floats
from edgespec.runtime.plan import HOST, Placement
from edgespec.runtime.sequences.model import AFTER, Model, Rows
from edgespec.runtime.text.tokenizer import Tokenizer

_WINDOW, _FIRST = 256, 16  # tokens of a pass, and those whose rows are not compared
_FLOAT = 0  # accuracy level of products whose activations are not rounded


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--windows", type=count, default=4)
    add_threads(parser)
    given = parser.parse_args()
    bundle = bundles.load(given.bundle)
    tokens = Tokenizer.from_folder(bundle.path).encode(given.text.read_text(encoding="utf-8"))
    windows = [tokens[_WINDOW * n :][:_WINDOW] for n in range(given.windows)]
    windows = [each for each in windows if len(each) == _WINDOW]
    if not windows:
        raise InputError(f"{given.text} has {len(tokens)} tokens: give {_WINDOW} or more")
    native = load_model(bundle, TARGET, Placement(HOST), given.threads)
    portable = Placement(HOST, native=False)
    exact = GraphOpener(bundle, TARGET, given.threads, accuracy=_FLOAT).model(portable)
    scores = Scores(models=2)
    for window in windows:
        pairs = zip(window[_FIRST + 1 :], _read(native, window), _read(exact, window), strict=True)
        for token, rounded, reference in pairs:
            scores.add(token, rounded, reference)
    print_table(
        ["rows", "KL", "error", "same likeliest token", "perplexity", "in float32"],
        [
            [
                len(windows) * (_WINDOW - _FIRST - 1),
                f"{scores.kl.value:.5f}",
                f"{scores.kl.error:.5f}",
                f"{scores.agreement:.1%}",
                f"{scores.nats(0).perplexity:.3f}",
                f"{scores.nats(1).perplexity:.3f}",
            ]
        ],
    )
    print_result("rounding", {"kl": scores.kl.value, "agreement": scores.agreement})


class _Raw(argparse.RawDescriptionHelpFormatter):
    pass


def _read(model: Model, tokens: list[int]) -> Floats:
    """Returns the logits behind each token but the first ones and the last, [n, V]."""
    sequence = model.sequence(tokens)
    wanted = list(range(_FIRST, len(tokens) - 1))
    rows = Rows(sequence, tokens, [AFTER, *range(len(tokens) - 1)], wanted)
    [logits] = model.forward([rows])
    rows.accept([])
    return logits


if __name__ == "__main__":
    sys.exit(exit_code(main))
