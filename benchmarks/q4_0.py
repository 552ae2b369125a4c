"""What int4 costs in perplexity against llama.cpp's Q4_0, at no more bytes; int8 and w8a8 with it.

    python benchmarks/q4_0.py models/embedded/checkpoints/python-7m --text code.py --cache peers

Q4_0 is that of the `gguf` package: the checkpoint's matrices, quantized and widened again, are
exported as fp32, so that the weights alone differ. Our int4 runs as it is, on each engine, with
whatever that rounds beside the weights. All are read by `edgespec eval` against the checkpoint in
fp32. Q4_0 has 4.5 bits a weight: blocks of 32 with a scale in fp16; so has int4 in blocks of 32. In
blocks of 64 it has 4.25, in blocks of 128 4.125.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from common import exit_code, print_result, print_table
from peers.base import PeerError
from peers.setup import environment
from reading import evaluated, weight_bytes

from edgespec import bundle as bundles
from edgespec.errors import InputError
from edgespec.export import ExportOptions, export_bundle
from edgespec.models import Checkpoint, load_checkpoint
from edgespec.runtime.deployment.device_names import cpu_engines
from edgespec.runtime.engines import CPU_ENGINES
from edgespec.runtime.execution.stage_files import suited
from edgespec.system.environment import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

_REQUIREMENTS = ("gguf", "ml_dtypes", "numpy", "safetensors")
_OURS = {
    **{f"int4, blocks of {n}": ExportOptions("int4-small", block_size=n) for n in (32, 64, 128)},
    "int8, blocks of 128": ExportOptions("int8", block_size=128),
    "w8a8": ExportOptions("w8a8"),
}
_FP32 = ExportOptions(precision="fp32")
_ROUND = (
    "import sys; sys.path.append(sys.argv[1]); from pathlib import Path; "
    "from peers.gguf_file import write_rounded; write_rounded(*map(Path, sys.argv[2:]))"
)


@dataclass(frozen=True)
class Quality:
    """A text read with weights of one kind.

    Attributes:
        weights: What they are.
        engine: That read it.
        mib: Of all weights.
        perplexity: See `edgespec eval`.
        perplexity_error: Its standard error.
        mean_kl: Nats, from the checkpoint in fp32.
        argmax_agreement: Share of the tokens before which both hold the same one likeliest.
        fp32_perplexity: Of the checkpoint in fp32.
    """

    weights: str
    engine: str
    mib: float
    perplexity: float
    perplexity_error: float
    mean_kl: float
    argmax_agreement: float
    fp32_perplexity: float


def main() -> None:
    arguments = _parse_arguments()
    checkpoint = load_checkpoint(arguments.checkpoint)
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        os.environ["EDGESPEC_CACHE"] = f"{scratch}/cache"  # what engines make of these goes, too
        found = list(_qualities(checkpoint, arguments, Path(scratch)))
    print_table(
        ["weights", "engine", "MiB", "perplexity", "±", "KL, nats", "same arg-max"],
        [
            [q.weights, q.engine, round(q.mib, 2), round(q.perplexity, 4),
             round(q.perplexity_error, 4), round(q.mean_kl, 5), round(q.argmax_agreement, 4)]
            for q in found
        ],
    )  # fmt: skip
    print(f"\nperplexity in fp32: {found[0].fp32_perplexity:.4f}")
    print_result(
        "q4_0",
        {
            "checkpoint": arguments.checkpoint.name,
            "text": arguments.text.name,
            "context": arguments.context,
            "qualities": list(map(asdict, found)),
        },
    )


def _qualities(
    checkpoint: Checkpoint, arguments: argparse.Namespace, scratch: Path
) -> Iterator[Quality]:
    reference = scratch / "fp32"
    export_bundle(checkpoint.path, reference, options=_FP32)
    rounded, rounded_bundle = scratch / "q4_0", scratch / "q4_0-fp32"
    _round(checkpoint.path, rounded, arguments.cache)
    export_bundle(rounded, rounded_bundle, options=_FP32)
    mib = q4_0_bytes(checkpoint) / MIB
    yield _read("Q4_0", mib, rounded_bundle, CPU_ENGINES[0], reference, arguments)
    for number, (weights, options) in enumerate(_OURS.items()):
        bundle = scratch / f"ours-{number}"
        export_bundle(checkpoint.path, bundle, options=options)
        size = weight_bytes(bundle) / MIB
        for each in suited(bundles.load(bundle).target, cpu_engines()):
            yield _read(weights, size, bundle, each.name, reference, arguments)


def _round(checkpoint: Path, output: Path, cache: Path) -> None:
    try:
        python = environment("gguf", _REQUIREMENTS, cache.absolute())
    except PeerError as error:
        raise InputError(f"gguf is needed: {error}") from error
    folder = Path(__file__).resolve().parent
    command = [str(python), "-P", "-c", _ROUND, *map(str, (folder, checkpoint, output))]
    variables = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, check=True, env=variables)


def q4_0_bytes(checkpoint: Checkpoint) -> int:
    """Of all tensors: matrices in Q4_0, vectors in fp32."""
    shapes = checkpoint.decoder.tensors().values()
    return sum(prod(shape) // 32 * 18 if len(shape) == 2 else 4 * prod(shape) for shape in shapes)


def _read(
    weights: str,
    mib: float,
    bundle: Path,
    engine: str,
    reference: Path,
    arguments: argparse.Namespace,
) -> Quality:
    found = evaluated(bundle, reference, arguments.text, context=arguments.context, device=engine)
    against = found["against"]
    return Quality(
        weights,
        engine,
        mib,
        found["perplexity"],
        found["perplexity_error"],
        against["mean_kl"],
        against["argmax_agreement"],
        against["perplexity"],
    )


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="int4 against Q4_0, by perplexity.")
    parser.add_argument("checkpoint", type=Path, help="folder of the checkpoint")
    parser.add_argument("--text", type=Path, required=True, help="a UTF-8 text to predict")
    parser.add_argument("--cache", type=Path, required=True, help="where gguf is installed")
    parser.add_argument("--context", type=int, help="tokens of a window (default: the model's)")
    parser.add_argument("--scratch", type=Path, help="where bundles are made and deleted")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
