"""Exports checkpoints to a bundle, one tensor at a time; a failed export leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

import edgespec
from edgespec import bundle
from edgespec.bundle.sublayers import Sublayers, parse
from edgespec.errors import InputError
from edgespec.export.calibration.calibrate import Calibrate
from edgespec.export.destination import replacing
from edgespec.export.embeddings import check_embeddings
from edgespec.export.formats.blocks import BLOCK_SIZES
from edgespec.export.keeping import describe
from edgespec.export.precisions import (
    INT4,
    PRECISIONS,
    SOURCE,
    asked_precision,
    rounding,
)
from edgespec.export.role import Progress, RoleWriter, described
from edgespec.export.skipping.sets import SkipSearch, Trial, check_skip_sets, skip_cuts
from edgespec.export.sources.hub import source_name
from edgespec.export.sources.vocabulary import end_ids, read_tokenizer
from edgespec.models import Checkpoint, load_checkpoint

STORED = (INT4, "int8", "fp16", "fp32")
"""The precisions in which a single matrix can be stored."""
KV_PRECISIONS = ("fp32", "fp16", "int8")
NPU_PRECISIONS = ("fp16", "fp32")


@dataclass(frozen=True)
class ExportOptions:
    """The options of an export.

    Attributes:
        precision: precision of the target's weights, one of `PRECISIONS`. int4 uses 8 bits for the
            vocabulary and for the matrices that need them most, int4-small uses 4 bits everywhere,
            and source is that of a quantized checkpoint: 8 bits for what cannot be kept. None:
            source if the checkpoint is quantized, else int4. A matrix that its file holds in
            blocks of no more bits than are asked for is kept as it is, see `export/keeping.py`.
        draft_precision: precision of the draft's weights; None: the target's, or int4-small if
            that is int4 or source.
        lm_head_precision: precision of both models' output projections and embeddings, one of
            `STORED`; None: that of the weights, or int8 if it is int4 or source.
        kv_precision: precision of the KV caches, one of `KV_PRECISIONS`.
        npu_precision: precision of an additional variant of the target for NPUs, one of
            `NPU_PRECISIONS`; None: no such variant.
        block_size: number of weights per scale; None: the largest that divides the row sizes of
            all matrices of a model.
        cut_layers: layers of the target before which a stage ends, so that the layers on both
            sides can run on different devices.
        skip_sets: sublayers of the target that each layer-skip draft leaves out, written as `4-6`
            or `9m,12-15`; see `edgespec.bundle.sublayers`.
        overwrite: whether to replace an existing bundle or empty folder.

    Raises:
        InputError: if a value is not one of its choices.
    """

    precision: str | None = None
    draft_precision: str | None = None
    lm_head_precision: str | None = None
    kv_precision: str = "fp32"
    npu_precision: str | None = None
    block_size: int | None = None
    cut_layers: tuple[int, ...] = ()
    skip_sets: tuple[str, ...] = ()
    overwrite: bool = False

    def __post_init__(self) -> None:
        choices: dict[str, tuple[object, ...]] = {
            "precision": (None, *PRECISIONS),
            "draft_precision": (None, *PRECISIONS),
            "lm_head_precision": (None, *STORED),
            "kv_precision": KV_PRECISIONS,
            "npu_precision": (None, *NPU_PRECISIONS),
            "block_size": (None, *BLOCK_SIZES),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                known = ", ".join(str(choice) for choice in allowed if choice is not None)
                raise InputError(f"{name} is {value!r}: use one of {known}")


@dataclass(frozen=True)
class ExportReport:
    """The result of an export.

    Attributes:
        source_bytes: bytes of the checkpoints' weights.
        bundle_bytes: bytes of the bundle.
        kept: a line for each role whose checkpoint is quantized: what was kept of it.
    """

    source_bytes: int
    bundle_bytes: int
    kept: tuple[str, ...] = ()


def export_bundle(
    target: Path,
    output: Path,
    draft: Path | None = None,
    options: ExportOptions | None = None,
    progress: Progress = lambda role, done, total: None,
    skip_search: SkipSearch | None = None,
    calibration: Calibrate | None = None,
) -> ExportReport:
    """Converts checkpoints to a bundle; if that fails, nothing is left behind.

    The bundle is written to a hidden folder beside `output`, which is renamed when it is complete.

    Args:
        target: see `write_bundle`.
        output: folder to create.
        draft: see `write_bundle`.
        options: options of the export; None for the defaults.
        progress: see `write_bundle`.
        skip_search: see `write_bundle`.
        calibration: see `write_bundle`.

    Raises:
        CheckpointError: if a checkpoint is damaged or not supported.
        ExportError: if `output` exists or cannot be written.
        InputError: if an option does not suit the model.
    """
    options = options or ExportOptions()
    sources = (target,) if draft is None else (target, draft)
    with replacing(output, options.overwrite, sources) as folder:
        return write_bundle(target, folder, draft, options, progress, skip_search, calibration)


def write_bundle(
    target: Path,
    folder: Path,
    draft: Path | None,
    options: ExportOptions,
    progress: Progress,
    skip_search: SkipSearch | None,
    calibration: Calibrate | None,
) -> ExportReport:
    """Writes a bundle to a folder, to which the caller may add files before moving it in place.

    Args:
        target: checkpoint folder of the target.
        folder: empty folder to write to; its content is incomplete if this fails.
        draft: checkpoint folder of a smaller model; None: no draft. Its tokenizer is added to the
            bundle where its tokens are not the target's.
        options: options of the export; `overwrite` is ignored.
        progress: called with the progress.
        skip_search: finds skip sets, or scores those of the options.
        calibration: runs models on a text before their weights are quantized; None: quantization
            weighs all inputs of a matrix alike, and a fixed rule says which matrices get 8 bits.

    Raises:
        CheckpointError: if a checkpoint is damaged or not supported.
        InputError: if an option does not suit the model.
    """
    checkpoints = {bundle.TARGET: load_checkpoint(target)}
    source, tokens = draft_source, draft_tokens = read_tokenizer(checkpoints[bundle.TARGET])
    if draft is not None:
        checkpoints[bundle.DRAFT] = load_checkpoint(draft)
        draft_source, draft_tokens = read_tokenizer(checkpoints[bundle.DRAFT])
    layout = Sublayers(described(checkpoints[bundle.TARGET].decoder))
    layer_cuts = _layer_cuts(options.cut_layers, layout)
    given = [layout.named(parse(text)) for text in options.skip_sets]
    check_skip_sets(given, layout)
    skips = tuple(map(bundle.SkipSet, given))
    _check_recurrent(checkpoints[bundle.TARGET], bool(given) or skip_search is not None)
    check_embeddings(checkpoints, bool(given) or skip_search is not None)
    tokenizer = checkpoints[bundle.TARGET].tokenizer_files
    for name, text in {**tokenizer, "tokenizer.json": source}.items():
        (folder / name).write_bytes(text.encode())
    own = {bundle.TARGET: "", bundle.DRAFT: ""}
    if draft_tokens != tokens:
        own[bundle.DRAFT] = bundle.DRAFT_TOKENIZER
        (folder / bundle.DRAFT_TOKENIZER).write_bytes(draft_source.encode())
    roles = {}
    variants: tuple[bundle.Variant, ...] = ()
    for name, checkpoint in checkpoints.items():
        ids = candidates(draft_tokens) if name == bundle.DRAFT else None
        with (
            rounding(name, checkpoint, options, calibration, folder) as (precision, rounded),
            RoleWriter(folder, name, checkpoint, precision, ids, progress, rounded) as writer,
        ):
            cuts: set[int] = set()
            if name == bundle.TARGET:
                if skip_search is not None:
                    with _Trials(folder, writer, tuple(tokenizer), layer_cuts) as trials:
                        skips = skip_search(trials.trial, skips)
                cuts = layer_cuts | skip_cuts((each.skipped for each in skips), layout)
            role = writer.write(sorted(cuts), texts=True)
            as_stored = asked_precision(name, checkpoint, options) == SOURCE
            role = replace(role, native=writer.write_native(as_stored))
            if name == bundle.TARGET and options.npu_precision is not None:
                variants = (_npu_variant(writer, role, options.npu_precision),)
        known = draft_tokens if own[name] else tokens
        roles[name] = replace(role, eos_ids=end_ids(checkpoint, known), tokenizer=own[name])
    files = bundle.describe_files(folder)
    provenance = {
        "edgespec": edgespec.__version__,
        **{name: source_name(checkpoint.path) for name, checkpoint in checkpoints.items()},
        **{
            f"{name} format": each.quantization
            for name, each in checkpoints.items()
            if each.quantization
        },
    }
    bundle.save_manifest(
        folder,
        bundle.Manifest(bundle.FORMAT, roles, tuple(tokenizer), provenance, files, skips, variants),
    )
    return ExportReport(
        sum(checkpoint.tensors.nbytes for checkpoint in checkpoints.values()),
        sum(entry.size for entry in files.values()),
        tuple(filter(None, (describe(name, checkpoints[name], roles[name]) for name in roles))),
    )


def candidates(tokens: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Returns the ids that a draft picks from: those of its tokenizer, without padding."""
    return np.arange(max(tokens.values()) + 1)


class _Trials:
    """Graphs for trying skip sets. The `with` statement removes them at its end; weights stay."""

    def __init__(
        self, folder: Path, writer: RoleWriter, tokenizer: tuple[str, ...], cuts: set[int]
    ) -> None:
        self._folder = folder
        self._writer = writer
        self._tokenizer = tokenizer
        self._graphs: set[str] = set()
        self.trial = Trial(self._bundle(writer.write(gated=True)), self._cut, frozenset(cuts))

    def __enter__(self) -> _Trials:
        return self

    def __exit__(self, *failure: object) -> None:
        for graph in self._graphs:
            (self._folder / graph).unlink()

    def _cut(self, cuts: Iterable[int]) -> bundle.Bundle:
        return self._bundle(self._writer.write(sorted(set(cuts))))

    def _bundle(self, role: bundle.Role) -> bundle.Bundle:
        self._graphs |= {stage.graph for stage in role.stages}
        roles = {bundle.TARGET: role}
        return bundle.Bundle(
            self._folder, bundle.Manifest(bundle.FORMAT, roles, self._tokenizer, {}, {}, ())
        )


def _npu_variant(target: RoleWriter, role: bundle.Role, precision: str) -> bundle.Variant:
    """Writes the target's variant for NPUs, with the stages of its role.

    It shares the role's weights if they have the same precision. The cache stays float32: rounding
    it in the graph needs numbers beyond half precision, in which NPUs compute.
    """
    wanted = bundle.Precision(precision, precision, "fp32", 0)
    cuts = [stage.start for stage in role.stages[1:]]
    if role.precision == wanted:
        stages = target.write_for_npu(cuts)
    else:
        with target.again(f"{bundle.TARGET}-{bundle.NPU}", wanted) as writer:
            stages = writer.write_for_npu(cuts)
    return bundle.Variant(bundle.TARGET, bundle.NPU, wanted, bundle.HALF_BIAS_OFF, stages, (), {})


def _check_recurrent(target: Checkpoint, skips: bool) -> None:
    """Checks that no draft would skip layers of a target with recurrent ones.

    Raises:
        InputError: if one would.
    """
    if skips and any(each.recurrent is not None for each in described(target.decoder)):
        raise InputError(
            f"{target.path} has recurrent layers, whose states a layer-skip draft "
            "would falsify: export it without skip_sets (--layer-skip)"
        )


def _layer_cuts(before: tuple[int, ...], layout: Sublayers) -> set[int]:
    """Returns the sublayers before which the user wants stages to end.

    Raises:
        InputError: if a layer does not exist, or no stage can end before it.
    """
    last = layout.layers - 1
    wrong = [layer for layer in before if not 0 < layer <= last]
    if wrong:
        raise InputError(
            f"cut_layers contains {wrong[0]}: the model has layers 0 to {last}, so give layers "
            f"from 1 to {last}"
        )
    return set(map(layout.first, before))
