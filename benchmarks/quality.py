r"""Measures how far precisions and llama.cpp's Q4_K_M are from a model, on unseen texts.

    python benchmarks/quality.py qwen-0.5b.gguf --work work --cache peers

The model is written anew in F16 with its columns in another order, which says the same: a file that
is quantized already would be found again by formats with the same blocks. That is the original.
Ours are exported from it as users get them; Q4_K_M is made by llama.cpp's own quantizers, in the
wheel of xllamacpp, without and with an importance matrix of the text that --calibrate reads. All
are read by `edgespec eval --suite --against` the original in fp32; no text of the suite is read by
calibration. Everything below --work is kept, so that a run goes on where another ended.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import exit_code, names, print_result, print_table
from llama_quantize import Values, write_permuted, write_q4_k_m

from edgespec import bundle as bundles
from edgespec.export.calibration.forward import Forward
from edgespec.export.calibration.graph import RESULT, STREAM
from edgespec.export.formats.products import one_blas_thread
from edgespec.measuring.suite import TEXTS
from edgespec.models import load_checkpoint
from edgespec.tuning.calibrating import opener, parts_of
from edgespec.tuning.texts import calibration_text

_WITH_MATRIX = "Q4_K_M-matrix"
_OURS: dict[str, list[str]] = {
    "int4": [],
    "int4-calibrated": ["--calibrate"],
    "int4-small": ["--precision", "int4-small"],
    "int4-kv-fp32": ["--kv-precision", "fp32"],
    "int8": ["--precision", "int8"],
}
_THEIRS = ("Q4_K_M", _WITH_MATRIX)
_KINDS = {  # names of matrices in checkpoints and in GGUF files
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
    "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip
_REFERENCE = ["--precision", "fp32"]


@dataclass(frozen=True)
class Quality:
    """The quality of a precision on the suite.

    Attributes:
        weights: name of the precision.
        mb: megabytes of the target's weights.
        bits: bits of a weight, with all scales.
        perplexity: perplexity by kind of text.
        kl: mean KL divergence from the checkpoint in fp32, in nats, by kind of text and over `all`
            tokens.
        agreement: share of all positions at which both have the same likeliest token.
    """

    weights: str
    mb: float
    bits: float
    perplexity: dict[str, float]
    kl: dict[str, float]
    agreement: float


def main() -> None:
    arguments = _parse_arguments()
    work: Path = arguments.work / arguments.model.stem
    work.mkdir(parents=True, exist_ok=True)
    original = work / "F16.gguf"
    if not original.exists():
        write_permuted(arguments.model, original)
    reference = _exported(original, work / "fp32", _REFERENCE)
    found = list[Quality]()
    for name in arguments.formats:
        done = work / f"{name}.json"
        if not done.exists():
            if name in _OURS:
                bundle = _exported(original, work / name, _OURS[name])
            else:
                bundle = _exported(
                    _quantized(name, original, work, arguments.cache), work / name, []
                )
            done.write_text(json.dumps(asdict(_quality(name, bundle, reference))), "utf-8")
        found.append(Quality(**json.loads(done.read_text("utf-8"))))
        print(f"{name}: {found[-1].bits:.2f} bits, KL {found[-1].kl}", file=sys.stderr, flush=True)
    print_table(
        [
            "weights",
            "MB",
            "bits a weight",
            *(f"KL, {kind}" for kind in TEXTS),
            "prose and code",
            "same arg-max",
            *(f"perplexity, {kind}" for kind in TEXTS),
        ],
        [
            [
                q.weights,
                round(q.mb),
                round(q.bits, 2),
                *(round(q.kl[kind], 4) for kind in TEXTS),
                round((q.kl["prose"] + q.kl["code"]) / 2, 4),
                round(q.agreement, 3),
                *(round(value, 3) for value in q.perplexity.values()),
            ]
            for q in found
        ],
    )
    facts = {"model": arguments.model.name, "qualities": list(map(asdict, found))}
    print_result("quality", facts)


def _exported(source: Path, bundle: Path, options: list[str]) -> Path:
    if not bundle.exists():
        command = [sys.executable, "-P", "-m", "edgespec", "export", str(source), "-o", str(bundle)]
        subprocess.run([*command, *options], check=True)
    return bundle


def _quantized(name: str, original: Path, work: Path, cache: Path) -> Path:
    """Makes Q4_K_M, with or without an importance matrix."""
    file = work / f"{name}.gguf"
    matrix = None
    if not file.exists():
        if name == _WITH_MATRIX:
            kept = work / "matrix.npz"
            if not kept.exists():
                np.savez(kept, allow_pickle=False, **_matrix(original))
            matrix = dict(np.load(kept))
        write_q4_k_m(original, file, cache, matrix)
    return file


def _matrix(path: Path) -> dict[str, Values]:
    """Returns the mean squares of what a dense model's matrices read, by names of a GGUF file."""
    checkpoint = load_checkpoint(path)
    opened = opener()
    found = dict[str, Values]()
    assert opened is not None, "edgespec was installed without a C++ compiler"
    texts, _ = parts_of(checkpoint, *calibration_text(None))
    with one_blas_thread():
        tokens = np.array([*texts.fitted, *texts.judged], np.int64)
        forward = Forward(checkpoint, tokens, opened)
        for number, layer in forward.layers():
            for sublayer in layer:
                part = forward.sublayer(number, sublayer)
                stream = {STREAM: forward.stream}
                seen = forward.compute(part, forward.texts, stream)
                forward.advance(seen[RESULT])
                for name, linears in part.reads.items():
                    squares = np.square(seen[name]).mean(axis=0)
                    for each in linears:
                        kind = _KINDS[each.weight.split(".")[-2]]
                        found[f"blk.{number}.{kind}.weight"] = squares
    return found


def _quality(name: str, bundle: Path, reference: Path) -> Quality:
    command = [
        sys.executable,
        "-P",
        "-m",
        "edgespec",
        "eval",
        str(bundle),
        "--suite",
        "--json",
        "--against",
        str(reference),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)["suite"]
    kl = {kind: found[kind]["against"]["mean_kl"] for kind in TEXTS}
    total = sum(found[kind]["scored"] for kind in TEXTS)
    kl["all"] = sum(kl[kind] * found[kind]["scored"] for kind in TEXTS) / total
    agreed = [found[kind]["against"]["argmax_agreement"] * found[kind]["scored"] for kind in TEXTS]
    perplexity = {kind: found[kind]["perplexity"] for kind in TEXTS}
    target = bundles.load(bundle).target
    size = bundles.load(bundle).role_size(bundles.TARGET)
    bits = 8 * size / target.parameters
    return Quality(name, size / 1e6, bits, perplexity, kl, sum(agreed) / total)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="GGUF file of a dense model, of whatever format")
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="folder for all files, of 12 bytes a weight, which are kept",
    )
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder for the peers' environments, kept"
    )
    every = (*_OURS, *_THEIRS)
    parser.add_argument(
        "--formats",
        type=lambda text: names(text, every),
        default=["int4", "int4-calibrated", *_THEIRS],
        help=f"of {','.join(every)} (default int4,int4-calibrated,{','.join(_THEIRS)})",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
