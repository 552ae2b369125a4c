"""Checks the results of a compiled target on an emulated NPU; it tells nothing about speed.

    python benchmarks/npu.py [BUNDLE] --shapes 8x128 --new-tokens 64

Without a bundle it exports the embedded pair, in fp32 with a variant for NPUs. The target runs on
the device (`qnn:emulated`), its draft and the reference on the CPU. It reports the nodes that the
compiler leaves to the CPU, the seconds to compile stages and to load compiled ones, and whether
speculation gives the text of plain decoding. Along the reference's text, it also reports how often
both choose the same token, and otherwise the gap between the reference's two best tokens (in
standard deviations of its logits).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING

import numpy as np
from common import add_threads, count, exit_code, memory, print_result, print_table

from edgespec import LLM
from edgespec import bundle as bundles
from edgespec.bundle import TARGET, Bundle
from edgespec.cli.assignment import assignments
from edgespec.export import NPU_PRECISIONS, ExportOptions, export_bundle
from edgespec.measuring.equality import Judge
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.engines import CallSizes, engine
from edgespec.runtime.engines.npu.socs import EMULATED
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.sizes import stage_sizes
from edgespec.runtime.shapes import Shapes
from edgespec.system.environment import MIB
from edgespec.tuning.precompiling import precompile
from edgespec.tuning.quantizing import QUANTIZED, quantize_variant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgespec.runtime.arrays import Floats
    from edgespec.runtime.engines.base import Engine

_DEVICE = "qnn:emulated"
_REFERENCE = "onnxruntime:cpu"
_PROMPT = "def fibonacci(n):\n"


@dataclass(frozen=True)
class Loading:
    """Times and memory of loading the target.

    Attributes:
        compiling: seconds to compile all stages and shapes.
        loading: seconds to load the same when they were compiled ahead of time.
        same_logits: whether both give logits with the same bits.
        mib: MiB by which the bundle has grown.
        memory_mib: anonymous and shared memory of the loaded model, in MiB.
        planned_mib: planned memory of the weights of all shapes, in MiB.
    """

    compiling: float
    loading: float
    same_logits: bool
    mib: float
    memory_mib: float
    planned_mib: float


@dataclass(frozen=True)
class Agreement:
    """Agreement of the device with the reference, along the reference's text.

    Attributes:
        tokens: number of compared tokens.
        same: number of tokens that both chose.
        gaps: for the other tokens, the gap between the reference's two best ones.
        error: relative error of the logits.
    """

    tokens: int
    same: int
    gaps: tuple[float, ...]
    error: float


def main() -> None:
    arguments = _parse_arguments()
    device = f"{_DEVICE}#{arguments.shapes}"
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "bundle"
        _make(arguments.bundle, path, arguments.precision)
        bundle = bundles.load(path)
        told = assignments(bundle, f"{device}#partly")
        loading = _loading(bundle, device, arguments)
        place = {"device": device, "draft_device": _REFERENCE, "threads": arguments.threads}
        options = {"max_new_tokens": arguments.new_tokens}
        plain = LLM(path, draft="none", **place)
        expected = plain.generate(_PROMPT, **options)
        drafted = LLM(path, draft="model", **place).generate(_PROMPT, **options)
        judge = Judge(plain.target, plain.tokenizer)
        verdict = judge.verdict(_PROMPT, expected.tokens, drafted.tokens)
        reference = LLM(path, draft="none", device=_REFERENCE, threads=arguments.threads)
        text = reference.generate(_PROMPT, **options).tokens
        tokens = [*reference.tokenizer.encode(_PROMPT), *text]
        agreement = _agreement(plain.target, reference.target, tokens, len(text))
    rows = [
        [each.stage, sum(each.here.values()), len(each.elsewhere), ", ".join(each.elsewhere)]
        for each in told
    ]
    print_table(["stage", "nodes there", "left to the CPU", "which"], rows)
    print(
        f"\ncompiled in {loading.compiling:.1f} s, loaded in {loading.loading:.1f} s when compiled "
        f"ahead of time (wanted: at most half); the same logits: {loading.same_logits}\n"
        f"{len(drafted.tokens)} tokens with drafts equal to plain decoding: {verdict}, "
        f"{drafted.mean_accepted_length:.2f} a round\n"
        f"as {bundle.target.precision.weights} on the CPU: {agreement.same} of {agreement.tokens} "
        f"tokens, logits off by {agreement.error:.2%}; gaps where not: "
        f"{', '.join(f'{gap:.3f}' for gap in agreement.gaps) or 'none'}"
    )
    print_result(
        "npu",
        {
            "device": device,
            "emulates": EMULATED.product,
            "precision": arguments.precision,
            "reference": bundle.target.precision.weights,
            "stages": [asdict(each) for each in told],
            "loading": asdict(loading),
            "new_tokens": len(drafted.tokens),
            "equal_to_plain": verdict,
            "mean_accepted_length": drafted.mean_accepted_length,
            "plain_tpot_ms": expected.tpot_ms,
            "agreement": asdict(agreement),
        },
    )


def _make(source: Path | None, path: Path, precision: str) -> None:
    """Copies a bundle, or exports the embedded pair."""
    if source is not None:
        copytree(source, path)
        return
    checkpoints, quantized = BUNDLE.parent / "checkpoints", precision in QUANTIZED
    options = ExportOptions("fp32", npu_precision="fp32" if quantized else precision)
    export_bundle(checkpoints / "python-7m", path, checkpoints / "python-1m", options)
    if quantized:
        quantize_variant(path, precision)


def _loading(bundle: Bundle, device: str, arguments: argparse.Namespace) -> Loading:
    """Compiles the target, then compiles it into the bundle and loads it from there."""
    found = engine(device)
    compiling, _, expected = _timed(bundle, found, arguments.threads)
    grown = precompile(bundle.path, EMULATED.device, arguments.shapes)
    bundle = bundles.load(bundle.path)
    loading, taken, logits = _timed(bundle, found, arguments.threads)
    calls = CallSizes(arguments.shapes.rows[-1], arguments.shapes.capacities[-1], 1)
    prints = [found.footprint(stage, calls) for stage in stage_sizes(bundle, TARGET)]
    planned = sum(each.weights + each.repacked for each in prints)
    same = np.array_equal(logits, expected)
    return Loading(compiling, loading, same, grown / MIB, taken / MIB, planned / MIB)


def _timed(bundle: Bundle, found: Engine, threads: int) -> tuple[float, int, Floats]:
    """Returns the seconds and bytes of loading the target, and the logits of a text."""
    before, begin = memory(os.getpid()), time.perf_counter()
    model = Model.load(bundle, TARGET, found, threads)
    seconds, taken = time.perf_counter() - begin, memory(os.getpid()) - before
    return seconds, taken, Runner(model).prefill([1, 2, 3])["logits"].copy()


def _agreement(found: Model, reference: Model, tokens: Sequence[int], compared: int) -> Agreement:
    """Compares two models along a text whose last tokens are the reference's choices."""
    ours, theirs = (_logits(model, tokens, compared) for model in (found, reference))
    choices = ours.argmax(-1)
    differ = np.flatnonzero(choices != theirs.argmax(-1))
    best = np.sort(theirs, axis=-1)[:, -2:]
    gaps = (best[:, 1] - best[:, 0]) / theirs.std(-1)
    error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    return Agreement(
        compared, compared - len(differ), tuple(float(gaps[row]) for row in differ), float(error)
    )


def _logits(model: Model, tokens: Sequence[int], compared: int) -> Floats:
    """Returns the logits of the rows before each of the last tokens, [compared, V]."""
    runner = Runner(model)
    begin = len(tokens) - compared
    rows = [runner.prefill(tokens[:begin])["logits"].copy()]
    step = model.shapes.rows[0] if model.shapes.capacities else 8
    passes = runner.score(tokens[begin:-1], step)
    rows += (results["logits"][:step].copy() for results in passes)
    return np.concatenate(rows)[:compared]


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A target on an emulated NPU.")
    parser.add_argument("bundle", type=Path, nargs="?", help="default: the embedded pair in fp32")
    parser.add_argument(
        "--precision", choices=(*NPU_PRECISIONS, *QUANTIZED), default=NPU_PRECISIONS[0]
    )
    parser.add_argument(
        "--shapes", type=Shapes.parse, default=Shapes((8,), (128,)), help="default %(default)s"
    )
    parser.add_argument(
        "--new-tokens", type=count, default=64, help="tokens of each text (default 64)"
    )
    add_threads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
