"""Compares the quality of precisions, and of GGUF files, on texts not used for calibration.

    python benchmarks/quality.py CHECKPOINT --work work
    python benchmarks/quality.py CHECKPOINT --work work --ours int4 --gguf Q4_K_M.gguf Q8_0.gguf

Each precision is exported as users get it, and each GGUF file with its own numbers. All are read by
`edgespec eval --suite --against` the same checkpoint in fp32. A checkpoint that is itself widened
from a GGUF file is no fair test of formats with the same blocks, which find the same numbers again.
Bundles below --work are kept and used again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import exit_code, names, print_result, print_table

from edgespec import bundle as bundles
from edgespec.measuring.suite import TEXTS

_OURS: dict[str, list[str]] = {
    "int4": [],
    "int4-small": ["--precision", "int4-small"],
    "int4-no-calibration": ["--no-calibration"],
    "int4-kv-fp16": ["--kv-precision", "fp16"],
    "int8": ["--precision", "int8"],
    "fp16": ["--precision", "fp16"],
}
_REFERENCE = ["--precision", "fp32"]


@dataclass(frozen=True)
class Quality:
    """The quality of a precision on the suite.

    Attributes:
        weights: name of the precision.
        mb: megabytes of the target's weights.
        perplexity: perplexity by kind of text.
        kl: mean KL divergence from the checkpoint in fp32, in nats, by kind of text and over `all`
            tokens.
        agreement: share of all positions at which both have the same likeliest token.
    """

    weights: str
    mb: float
    perplexity: dict[str, float]
    kl: dict[str, float]
    agreement: float


def main() -> None:
    arguments = _parse_arguments()
    work = arguments.work / arguments.checkpoint.name
    work.mkdir(parents=True, exist_ok=True)
    reference = _exported(arguments.checkpoint, work / "fp32", _REFERENCE)
    made = {file.stem: _exported(file, work / file.stem, []) for file in arguments.gguf}
    for name in arguments.ours:
        made[name] = _exported(arguments.checkpoint, work / name, _OURS[name])
    found = [_quality(name, bundle, reference) for name, bundle in made.items()]
    print_table(
        ["weights", "MB", *(f"KL, {kind}" for kind in (*TEXTS, "all")), "same arg-max",
         *(f"perplexity, {kind}" for kind in TEXTS)],
        [
            [q.weights, round(q.mb), *(round(value, 4) for value in q.kl.values()),
             round(q.agreement, 3), *(round(value, 3) for value in q.perplexity.values())]
            for q in found
        ],
    )  # fmt: skip
    facts = {"checkpoint": arguments.checkpoint.name, "qualities": list(map(asdict, found))}
    print_result("quality", facts)


def _exported(source: Path, bundle: Path, options: list[str]) -> Path:
    if not bundle.exists():
        command = [sys.executable, "-m", "edgespec", "export", str(source), "-o", str(bundle)]
        subprocess.run([*command, *options], check=True)
    return bundle


def _quality(name: str, bundle: Path, reference: Path) -> Quality:
    command = [
        sys.executable, "-m", "edgespec", "eval", str(bundle), "--suite", "--json",
        "--against", str(reference),
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)["suite"]
    kl = {kind: found[kind]["against"]["mean_kl"] for kind in TEXTS}
    total = sum(found[kind]["scored"] for kind in TEXTS)
    kl["all"] = sum(kl[kind] * found[kind]["scored"] for kind in TEXTS) / total
    agreed = [found[kind]["against"]["argmax_agreement"] * found[kind]["scored"] for kind in TEXTS]
    perplexity = {kind: found[kind]["perplexity"] for kind in TEXTS}
    size = bundles.load(bundle).role_size(bundles.TARGET)
    return Quality(name, size / 1e6, perplexity, kl, sum(agreed) / total)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="folder of the checkpoint")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for all bundles, which are kept"
    )
    parser.add_argument(
        "--ours", type=lambda text: names(text, tuple(_OURS)) if text else [],
        default=["int4", "int4-small", "int8"], help=f"of {','.join(_OURS)}; '' for none",
    )  # fmt: skip
    parser.add_argument(
        "--gguf", type=Path, nargs="+", default=[], metavar="FILE", help="files of the same model"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
