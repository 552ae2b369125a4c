"""Checkpoint in, bundle out: one tensor at a time, and all or nothing."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import edgespec
from edgespec import bundle
from edgespec.errors import InputError
from edgespec.export.destination import replacing
from edgespec.export.formats import BlockFormat, FloatFormat, WeightFormat, WeightStream
from edgespec.export.graph import DataFile, GraphBuilder
from edgespec.export.lowering import FLOAT, HALF, StageFormats, StageLowering
from edgespec.export.vocabulary import check_vocabularies, token_ids
from edgespec.models import Checkpoint, Decoder, load_checkpoint

PRECISIONS = ("int4", "int8", "fp16", "fp32")
BLOCK_SIZES = (128, 64, 32)
KV_PRECISIONS = ("fp32", "fp16")
# Scores of masked rows: far below any score, and exact zeros after the softmax.
_BIAS_OFF = -1e9

_log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ExportOptions:
    """How a bundle is stored.

    Attributes:
        precision: of the target's weights, one of `PRECISIONS`.
        draft_precision: of the draft's; None: the target's.
        lm_head_precision: of both output projections; None: that of the weights.
        kv_precision: of the caches, one of `KV_PRECISIONS`.
        block_size: weights per scale; None: the largest that divides every K of a model.
        overwrite: replace a bundle (or an empty folder) that is there already.

    Raises:
        InputError: on a value that is none of its choices.
    """

    precision: str = "int4"
    draft_precision: str | None = None
    lm_head_precision: str | None = None
    kv_precision: str = "fp32"
    block_size: int | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        choices: dict[str, tuple[object, ...]] = {
            "precision": PRECISIONS,
            "draft_precision": (None, *PRECISIONS),
            "lm_head_precision": (None, *PRECISIONS),
            "kv_precision": KV_PRECISIONS,
            "block_size": (None, *BLOCK_SIZES),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                known = ", ".join(str(choice) for choice in allowed if choice is not None)
                raise InputError(f"{name} is {value!r}: use one of {known}")


@dataclass(frozen=True)
class ExportReport:
    """Bytes of the checkpoints' weights and of the bundle made from them."""

    source_bytes: int
    bundle_bytes: int


def export_bundle(
    target: Path,
    output: Path,
    draft: Path | None = None,
    options: ExportOptions | None = None,
    progress: Progress = lambda role, done, total: None,
) -> ExportReport:
    """Convert checkpoints to a bundle.

    The bundle grows in a hidden folder beside `output` and is renamed when it is complete.

    Args:
        target: folder of the model whose text is wanted.
        output: folder to make.
        draft: folder of a smaller model with the same tokenizer.
        options: precisions; None for the defaults.
        progress: called with a role's name, the weights written and the weights in all.

    Raises:
        CheckpointError: if a checkpoint is damaged or not supported.
        ExportError: if vocabularies differ, `output` exists or cannot be written.
    """
    options = options or ExportOptions()
    checkpoints = {bundle.TARGET: load_checkpoint(target)}
    tokens = token_ids(checkpoints[bundle.TARGET])
    if draft is not None:
        checkpoints[bundle.DRAFT] = load_checkpoint(draft)
        check_vocabularies(tokens, token_ids(checkpoints[bundle.DRAFT]))
    # Only a draft's graph picks candidates, among the ids of the tokenizer.
    candidates = {bundle.TARGET: 0, bundle.DRAFT: max(tokens.values()) + 1}
    with replacing(output, options.overwrite) as folder:
        roles = {
            name: _export_role(folder, name, checkpoint, options, candidates[name], progress)
            for name, checkpoint in checkpoints.items()
        }
        tokenizer = checkpoints[bundle.TARGET].tokenizer_files
        for name, file in tokenizer.items():
            shutil.copyfile(file, folder / name)
        files = bundle.describe_files(folder)
        provenance = {
            "edgespec": edgespec.__version__,
            **{name: checkpoint.path.resolve().name for name, checkpoint in checkpoints.items()},
        }
        bundle.save_manifest(
            folder,
            bundle.Manifest(bundle.FORMAT, roles, tuple(tokenizer), provenance, files),
        )
    return ExportReport(
        sum(checkpoint.tensors.nbytes for checkpoint in checkpoints.values()),
        sum(entry.size for entry in files.values()),
    )


def _export_role(
    folder: Path,
    name: str,
    checkpoint: Checkpoint,
    options: ExportOptions,
    candidates: int,
    progress: Progress,
) -> bundle.Role:
    decoder, config = checkpoint.decoder, checkpoint.config
    precision = _precision(name, decoder, options)
    formats = _formats(decoder, precision, candidates)
    total = sum(int(np.prod(shape)) for shape in decoder.tensors().values())
    done = 0

    def count(values: int) -> None:
        nonlocal done
        done += values
        progress(name, done, total)

    graph_file, data_file = f"{name}.onnx", f"{name}.data"
    graph = GraphBuilder(name, data_file)
    with DataFile(folder / data_file) as data:
        weights = WeightStream(data, checkpoint.tensors, count)
        lowering = StageLowering(graph, weights, formats)
        lowering.emit(decoder)
    graph.save(folder / graph_file)
    stage = bundle.Stage(
        graph_file,
        data_file,
        0,
        2 * len(decoder.layers),
        tuple(lowering.inputs),
        tuple(lowering.outputs),
    )
    return bundle.Role(
        architecture=config.model_type,
        layers=len(decoder.layers),
        hidden_size=decoder.hidden_size,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab_size=decoder.vocab_size,
        context_length=decoder.context_length,
        inv_freq=tuple(float(f) for f in decoder.rope.inv_freq),
        eos_ids=config.eos_ids,
        bias_off=_BIAS_OFF,
        parameters=total,
        precision=precision,
        stages=(stage,),
        quantization_error={key: round(value, 6) for key, value in weights.errors.items()},
    )


def _precision(name: str, decoder: Decoder, options: ExportOptions) -> bundle.Precision:
    weights = options.precision
    if name == bundle.DRAFT and options.draft_precision is not None:
        weights = options.draft_precision
    head = options.lm_head_precision or weights
    quantized = any(p.startswith("int") for p in (weights, head))
    block = _block_size(name, decoder, options.block_size) if quantized else 0
    return bundle.Precision(weights, head, options.kv_precision, block)


def _block_size(name: str, decoder: Decoder, asked: int | None) -> int:
    layers = [(a.q, a.o, m.gate, m.down) for a, m in decoder.layers]
    widths = sorted({linear.in_features for group in layers for linear in group})
    if asked is None:
        fitting = [b for b in BLOCK_SIZES if all(width % b == 0 for width in widths)]
        if fitting:
            return fitting[0]
        asked = BLOCK_SIZES[-1]
    misfits = [width for width in widths if width % asked]
    if misfits:
        _log.warning(
            "%s: block size %d does not divide K = %s: rows are padded, which costs speed",
            name, asked, ", ".join(map(str, misfits)),
        )  # fmt: skip
    return asked


def _formats(decoder: Decoder, precision: bundle.Precision, candidates: int) -> StageFormats:
    layers = _format(precision.weights, precision.block_size)
    head = _format(precision.lm_head, precision.block_size)
    kv_dtype = HALF if precision.kv == "fp16" else FLOAT
    # A tied embedding reads the head's bytes, so that they are stored once.
    return StageFormats(layers, head if decoder.tied else layers, head, kv_dtype, candidates)


def _format(precision: str, block_size: int) -> WeightFormat:
    if precision in ("int4", "int8"):
        return BlockFormat(int(precision[3:]), block_size)
    return FloatFormat(np.float16 if precision == "fp16" else np.float32)
