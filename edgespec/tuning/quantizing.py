"""Quantization of a target's variant for NPUs: integer weights and 16-bit activations."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edgespec import bundle as bundles
from edgespec.bundle import NPU, TARGET, Bundle, Precision, Stage, Variant
from edgespec.bundle.variants import replace_variant
from edgespec.errors import InputError
from edgespec.runtime.engines import Quantizer, quantizer
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.stage_files import stage_file
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.system.processors import default_threads
from edgespec.tuning.texts import Piece, calibration_text, pieces_of

QUANTIZED = {"w8a16": 8, "w4a16": 4}
"""Bits per weight by precision; activations have 16 bits."""

# Far below any score, but small enough for 16-bit activations to resolve scores: a step is 0.002.
_BIAS_OFF = -100.0
_PIECES = 8
_ROWS = 8  # rows of a verification


def quantize_variant(path: Path, precision: str, calibration: Path | None = None) -> int:
    """Quantizes the plain weights of a bundle's variant for NPUs.

    The variant reads the text on the CPU to find the ranges of its activations. The bundle does not
    change until everything is written.

    Args:
        path: folder of a bundle that was exported with an NPU precision of fp32.
        precision: one of `QUANTIZED`.
        calibration: file with the text; None for the built-in passages in English and Python.

    Returns:
        Number of bytes that the bundle has grown by; negative if it got smaller.

    Raises:
        BundleError: if the bundle cannot be used.
        DeviceError: if a stage cannot be quantized.
        InputError: if there is no such variant, or the text cannot be used.
    """
    bundle = bundles.load(path)
    variant = bundle.variant(TARGET, NPU)
    if variant is None or variant.precision.weights != "fp32":
        raise InputError(
            f"{path} has no plain weights for NPUs: export it with --npu-precision fp32"
        )
    pieces = _text(path, calibration)
    # The bias that hides rows is an activation too, so it must be the final one already.
    kept = (each for each in bundle.manifest.variants if each is not variant)
    hidden = replace(variant, bias_off=_BIAS_OFF)
    bundle = replace(bundle, manifest=replace(bundle.manifest, variants=(*kept, hidden)))
    tool = quantizer()
    _calibrate(bundle, tool, pieces)
    stages: list[Stage] = []
    errors: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix=bundles.QUANTIZING, dir=path) as folder:
        for number, stage in enumerate(variant.stages):
            graph = f"{Path(stage.graph).stem}-{precision}.onnx"
            source, output = stage_file(bundle, TARGET, number, tool), Path(folder) / graph
            found = tool.quantize(source, QUANTIZED[precision], output)
            errors |= {name: round(error, 6) for name, error in found.items()}
            stages.append(replace(stage, graph=graph, data=f"{graph}.data"))
        made = Variant(
            role=TARGET,
            name=NPU,
            precision=Precision(precision, precision, variant.precision.kv, 0),
            bias_off=_BIAS_OFF,
            stages=tuple(stages),
            compiled=(),
            quantization_error=errors,
        )
        before = bundles.load(path)
        return replace_variant(before, made, Path(folder)).size - before.size


def _text(path: Path, calibration: Path | None) -> list[Piece]:
    text, source = calibration_text(calibration)
    return pieces_of(text, Tokenizer.from_folder(path), _PIECES, source)


def _calibrate(bundle: Bundle, tool: Quantizer, pieces: Sequence[Piece]) -> None:
    """Runs the model so that the tool sees its calls.

    The model is freed on return, since Windows cannot delete files that are mapped.
    """
    model = Model.load(bundle, TARGET, tool, default_threads())
    for piece in pieces:
        _read(model, piece.tokens)


def _read(model: Model, tokens: Sequence[int]) -> None:
    """Reads tokens as in generation: the first half in one pass, the rest in verifications."""
    runner, half = Runner(model), len(tokens) // 2
    runner.prefill(tokens[:half])
    for _ in runner.score(tokens[half:], _ROWS):
        pass
