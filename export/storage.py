"""Chooses the format of a role's matrices: asked for, kept from the file, or widened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from edgespec import bundle
from edgespec.errors import CheckpointError, InputError
from edgespec.export.calibration.calibrate import Calibrate, to_widen, widened_by_rule
from edgespec.export.formats.blocks import BLOCK_SIZES, QuantizedRows, choose_block_size
from edgespec.export.formats.rounded_matrices import RoundedMatrices
from edgespec.export.formats.tiles import BLOCK, TILE_FORMATS
from edgespec.models import Checkpoint, Decoder, TensorSource
from edgespec.system.options import check, explained, option

INT4, INT4_SMALL, SOURCE = "int4", "int4-small", "source"
PRECISIONS = (INT4, INT4_SMALL, SOURCE, "int8", "fp16", "fp32")
STORED = (INT4, "int8", "fp16", "fp32")
"""The precisions in which a single matrix can be stored."""
KV_PRECISIONS = ("fp32", "fp16", "int8")
FLOATS = {"fp32": "f32", "fp16": "f16"}
"""Formats of tiles by the precisions that are floats."""

# Matrices are widened from 4 to 8 bits until the damage of the others (see `Calibration`) is at
# most _DAMAGE, or a share of all weights is widened. Small models lose more by 4 bits and are
# cheaper to widen, so their share is larger. Measured: benchmarks/RESULTS.md.
_DAMAGE, _WIDE_SHARE, _WIDE_SHARE_OF_SMALL, _SMALL = 0.01, 0.25, 0.45, 10**9
# Most bits in which a draft keeps a file's own numbers if nobody asks for another precision.
# Measured: benchmarks/RESULTS.md.
_DRAFT_BITS = 6
_PART_VALUES = 1 << 22  # values whose scales are looked at, at a time


@explained
@dataclass(frozen=True)
class ExportOptions:
    """The options of an export.

    Raises:
        InputError: if a value is not one of its choices.
    """

    precision: str | None = option(
        None, "precision of the target's weights; int4: 4 bits, and 8 bits for the vocabulary and "
        "for the matrices that need them most; int4-small: 4 bits for all, faster and less "
        "accurate; int8: close to the original, twice the size; source: quantized matrices as the "
        "checkpoint holds them, others in 8 bits",
        none="source if the checkpoint is quantized, else int4", choices=PRECISIONS,
    )  # fmt: skip
    draft_precision: str | None = option(
        None, "precision of the draft's weights",
        none="the target's, or int4-small if that is int4 or source, but what a file has in up "
        "to 6 bits stays as it is; int8 for a head",
        choices=PRECISIONS,
    )  # fmt: skip
    lm_head_precision: str | None = option(
        None, "precision of the output projections and embeddings",
        none="that of the weights, or int8 if that is int4 or source", choices=STORED,
    )  # fmt: skip
    kv_precision: str = option("fp32", "precision of the KV caches", choices=KV_PRECISIONS)
    block_size: int | None = option(
        None, "number of weights per scale", none="the largest one that divides every row",
        choices=BLOCK_SIZES,
    )  # fmt: skip
    skip_sets: tuple[str, ...] = option(
        (), "sublayers of the target that each layer-skip draft leaves out, written as 4-6 for "
        "layers, 4a or 4m for an attention or MLP, with commas between them",
    )  # fmt: skip
    overwrite: bool = option(False, "replace an existing bundle or empty folder")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Storage:
    """The format of each matrix of a role.

    Attributes:
        precision: the formats of most.
        head: names of the output projection and the embedding.
        kept: matrices that keep the numbers of the checkpoint's file, and their formats of tiles.
        wide: matrices that have 8 bits although most have 4.
        rounded: matrices that are already rounded to 4 bits, in blocks of the precision's size.
    """

    precision: bundle.Precision
    head: frozenset[str]
    kept: Mapping[str, str] = field(default_factory=dict)
    wide: frozenset[str] = frozenset()
    rounded: Mapping[str, QuantizedRows] = field(default_factory=dict)

    def format(self, name: str) -> str:
        """Returns the format of tiles of a matrix."""
        if name in self.kept:
            return self.kept[name]
        precision = self.precision.lm_head if name in self.head else self.precision.weights
        return FLOATS.get(precision) or f"q{8 if name in self.wide else precision[3:]}_0"

    def describe(self, name: str, checkpoint: Checkpoint, errors: Mapping[str, float]) -> str:
        """Says what was kept of a quantized checkpoint, and what rounding others again has cost.

        Args:
            name: name of the role.
            checkpoint: the checkpoint.
            errors: see `Role.quantization_error`.

        Returns:
            One line; empty if the checkpoint is not quantized.
        """
        if not checkpoint.quantized:
            return ""
        again = [error for each, error in errors.items() if each not in self.kept]
        text = f"{name}: {checkpoint.quantization or 'quantized'} checkpoint"
        if self.kept:
            bits = sorted({TILE_FORMATS[each].bits for each in self.kept.values()})
            numbers = ", ".join(map(str, bits))
            text += f", {len(self.kept)} matrices kept exactly in {numbers} bits"
        if again:
            text += f", {len(again)} rounded with a mean error of {fmean(again):.2%}"
        return text


@contextmanager
def stored(
    name: str,
    checkpoint: Checkpoint,
    options: ExportOptions,
    calibration: Calibrate | None,
    folder: Path,
) -> Iterator[Storage]:
    """Chooses the formats of a role's matrices; rounds those that a calibration rounds.

    Args:
        name: name of the role.
        checkpoint: the model.
        options: options of the export.
        calibration: see `write_bundle`.
        folder: folder with room for these matrices, which are deleted at the end of the `with`.

    Raises:
        CheckpointError: if the file is damaged.
        InputError: if the precision is that of the source, which is not quantized.
    """
    storage = _chosen(name, checkpoint, options)
    with RoundedMatrices(folder, storage.kept) as rounded:
        seen = None
        if calibration is not None and storage.precision.weights == INT4:
            seen = calibration(checkpoint, storage.precision.block_size, rounded)
        if _asked(name, checkpoint, options) == INT4:
            decoder = checkpoint.decoder
            if seen is None:
                wide = widened_by_rule(decoder)
            else:
                small = sum(seen.sizes.values()) < _SMALL
                wide = to_widen(seen, _DAMAGE, _WIDE_SHARE_OF_SMALL if small else _WIDE_SHARE)
            wide = _alike(decoder, wide) - storage.kept.keys()
            kept = _kept(checkpoint.tensors, wide, 8, as_stored=False)
            storage = replace(storage, kept={**storage.kept, **kept}, wide=wide - kept.keys())
        yield replace(storage, rounded=rounded)


def _alike(decoder: Decoder, wide: frozenset[str]) -> frozenset[str]:
    """Returns the matrices to widen, those of a stack all if most of them are among these."""
    for stack in (stack for each in decoder.sublayers for stack in each.stacks):
        own = frozenset(linear.weight for linear in stack)
        wide = wide | own if 2 * len(own & wide) > len(own) else wide - own
    return wide


def _asked(name: str, checkpoint: Checkpoint, options: ExportOptions) -> str:
    """Returns the requested precision of a role, one of `PRECISIONS`."""
    asked = options.precision
    if name == bundle.DRAFT:
        asked = options.draft_precision
        # A draft's errors never change the text, so it gets the fewest bytes, which is fastest.
        if asked is None and options.precision in (None, INT4, SOURCE):
            return INT4_SMALL
        asked = asked or options.precision
    if asked is None:
        return SOURCE if checkpoint.quantized else INT4
    if asked == SOURCE and not checkpoint.quantized:
        raise InputError(
            f"the precision of {name} is {SOURCE!r}, but {checkpoint.path} is not quantized: use "
            f"one of {', '.join(each for each in PRECISIONS if each != SOURCE)}"
        )
    return asked


def _chosen(name: str, checkpoint: Checkpoint, options: ExportOptions) -> Storage:
    """Returns the formats of a role's matrices before a calibration."""
    decoder, tensors = checkpoint.decoder, checkpoint.tensors
    asked, vocabulary = _asked(name, checkpoint, options), _vocabulary(decoder)
    weights = {INT4_SMALL: INT4, SOURCE: "int8"}.get(asked, asked)
    head = options.lm_head_precision or ("int8" if asked == INT4 else weights)
    if not {weights, head} & {INT4, "int8"}:
        precision = bundle.Precision(weights, head, options.kv_precision, 0)
        return Storage(precision, vocabulary)
    linears = [linear for each in decoder.sublayers for linear in each.linears]
    block = choose_block_size(name, (each.in_features for each in linears), options.block_size)
    layers = [each.weight for each in linears]
    least = _DRAFT_BITS if asked == INT4_SMALL and options.draft_precision is None else 0
    kept = _kept(tensors, layers, max(_bits(weights), least), asked == SOURCE)
    kept |= _kept(tensors, vocabulary, max(_bits(head), least), asked == SOURCE)
    return Storage(bundle.Precision(weights, head, options.kv_precision, block), vocabulary, kept)


def _vocabulary(decoder: Decoder) -> frozenset[str]:
    """Returns the names of the output projection, and of tables by token."""
    names = {decoder.embedding, decoder.lm_head.weight}
    if decoder.layer_inputs is not None:
        names |= {decoder.layer_inputs.table, decoder.layer_inputs.projection.weight}
    return frozenset(names)


def _bits(precision: str) -> int:
    return 0 if precision in FLOATS else int(precision[3:])


def _kept(
    tensors: TensorSource, names: Iterable[str], most_bits: int, as_stored: bool
) -> dict[str, str]:
    """Returns the formats in which matrices keep the numbers of their file, by their names.

    Args:
        tensors: the checkpoint's tensors.
        names: names of the matrices.
        most_bits: the largest number of bits to store one in; 0: none is kept.
        as_stored: whether an encoding of GGUF files is kept whatever bits it has.

    Raises:
        CheckpointError: if the file is damaged.
    """
    found = {}
    for name in names:
        encoding = TILE_FORMATS.get(tensors.encoding(name) or "")
        if encoding is not None and encoding.unit > 1:
            if as_stored or encoding.bits <= most_bits:
                found[name] = encoding.name
        elif most_bits and (form := blocks_format(tensors, name, most_bits)):
            found[name] = form
    return found


def blocks_format(tensors: TensorSource, name: str, most_bits: int) -> str | None:
    """Returns the format of tiles that holds a matrix's blocks exactly; None if there is none.

    All scales are read: they decide.

    Args:
        tensors: the checkpoint's tensors.
        name: name of the matrix.
        most_bits: the largest number of bits to store it in.

    Raises:
        CheckpointError: if scales are infinite or NaN.
    """
    blocks = tensors.blocks(name)
    if blocks is None or (bits := 4 if blocks.bits <= 4 else 8) > most_bits:
        return None
    rows, width = tensors.shape(name)
    if blocks.size < width and blocks.size % BLOCK:
        return None
    zero_points, step = False, max(1, _PART_VALUES // width)
    for start in range(0, rows, step):
        part = tensors.read_blocks(name, start, min(start + step, rows))
        if not np.isfinite(part.scales).all():
            raise CheckpointError(
                f"{tensors.place(name)}: {name} has scales that are infinity or NaN: download the "
                "checkpoint again"
            )
        with np.errstate(over="ignore"):  # what overflows is not equal
            if not np.array_equal(part.scales, part.scales.astype(np.float16)):
                return None
        if part.zeros is not None:
            zero_points |= bool((part.zeros != 1 << blocks.bits - 1).any())
    return f"q{bits}_{'z' if zero_points else '0'}"
