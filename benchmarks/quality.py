"""Compares the quality of precisions, and of GGUF files, on texts not used for calibration.

    python benchmarks/quality.py CHECKPOINT --work work
    python benchmarks/quality.py CHECKPOINT --work work --ours int4 --gguf Q4_K_M.gguf Q8_0.gguf
    python benchmarks/quality.py F16.gguf --work work --quantizer LLAMA-QUANTIZE

With llama.cpp's quantizer (the wheel of ik-llama-cpp-python has one), Q4_K_M is made of a GGUF file
in F16, with and without an importance matrix of the text that calibration reads. Each precision is
exported as users get it, and each GGUF file with its own numbers. All are read by `edgespec eval
--suite --against` the same checkpoint in fp32. A checkpoint that is itself widened from a GGUF file
is no fair test of formats with the same blocks, which find the same numbers again. Bundles below
--work are kept and used again.
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import exit_code, names, print_result, print_table

from edgespec import bundle as bundles
from edgespec.export.calibration.forward import Forward
from edgespec.export.calibration.graph import RESULT, STREAM
from edgespec.export.formats.products import one_blas_thread
from edgespec.measuring.suite import TEXTS
from edgespec.models import load_checkpoint
from edgespec.tuning.calibrating import opener, parts_of
from edgespec.tuning.texts import calibration_text

_OURS: dict[str, list[str]] = {
    "int4": [],
    "int4-calibrated": ["--calibrate"],
    "int4-small": ["--precision", "int4-small"],
    "int4-kv-fp16": ["--kv-precision", "fp16"],
    "int8": ["--precision", "int8"],
    "fp16": ["--precision", "fp16"],
}
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
    work = arguments.work / arguments.checkpoint.name
    work.mkdir(parents=True, exist_ok=True)
    reference = _exported(arguments.checkpoint, work / "fp32", _REFERENCE)
    files = list(arguments.gguf)
    if arguments.quantizer is not None:
        files += _quantized(arguments.quantizer, arguments.checkpoint, work)
    made = {file.stem: _exported(file, work / file.stem, []) for file in files}
    for name in arguments.ours:
        made[name] = _exported(arguments.checkpoint, work / name, _OURS[name])
    found = [_quality(name, bundle, reference) for name, bundle in made.items()]
    print_table(
        ["weights", "MB", "bits", *(f"KL, {kind}" for kind in (*TEXTS, "all")), "same arg-max",
         *(f"perplexity, {kind}" for kind in TEXTS)],
        [
            [q.weights, round(q.mb), round(q.bits, 2),
             *(round(value, 4) for value in q.kl.values()), round(q.agreement, 3),
             *(round(value, 3) for value in q.perplexity.values())]
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


def _quantized(quantizer: Path, checkpoint: Path, work: Path) -> list[Path]:
    """Makes Q4_K_M without and with an importance matrix, by llama.cpp's own quantizer."""
    plain, weighed, matrix = work / "Q4_K_M.gguf", work / "Q4_K_M-matrix.gguf", work / "matrix.dat"
    if not weighed.exists():
        _write_matrix(checkpoint, matrix)
        for file, given in ((plain, []), (weighed, ["--imatrix", str(matrix)])):
            command = [str(quantizer), *given, str(checkpoint), str(file), "Q4_K_M"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return [plain, weighed]


def _write_matrix(path: Path, file: Path) -> None:
    """Writes the mean squares of what a dense model's matrices read, as llama.cpp's tool does."""
    checkpoint, opened, found = load_checkpoint(path), opener(), {}
    assert opened is not None, "edgespec was installed without a C++ compiler"
    texts = parts_of(checkpoint, *calibration_text(None)).read
    with one_blas_thread():
        tokens = np.array([*texts.fitted, *texts.judged], np.int64)
        forward = Forward(checkpoint, tokens, opened)
        for number, layer in forward.layers():
            for sublayer in layer:
                part, stream = forward.sublayer(number, sublayer), {STREAM: forward.stream}
                seen = forward.compute(part, forward.texts, stream)
                forward.advance(seen[RESULT])
                for name, linears in part.reads.items():
                    squares = np.square(seen[name]).mean(axis=0)
                    for each in linears:
                        kind = _KINDS[each.weight.split(".")[-2]]
                        found[f"blk.{number}.{kind}.weight"] = squares
    with file.open("wb") as out:
        out.write(struct.pack("<i", len(found)))
        for name, squares in found.items():
            out.write(struct.pack("<i", len(name)) + name.encode())
            out.write(struct.pack("<ii", 1, len(squares)) + squares.tobytes())


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
    target = bundles.load(bundle).target
    size = bundles.load(bundle).role_size(bundles.TARGET)
    bits = 8 * size / target.parameters
    return Quality(name, size / 1e6, bits, perplexity, kl, sum(agreed) / total)


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
        default=["int4", "int4-calibrated", "int8"], help=f"of {','.join(_OURS)}; '' for none",
    )  # fmt: skip
    parser.add_argument(
        "--gguf", type=Path, nargs="+", default=[], metavar="FILE", help="files of the same model"
    )
    parser.add_argument(
        "--quantizer", type=Path, help="llama.cpp's llama-quantize, for a CHECKPOINT in F16"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
