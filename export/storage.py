"""Chooses the format of a role's matrices: asked for, kept from the file, or widened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from edgespec import bundle
from edgespec.bundle.options import INT4, INT4_SMALL, PRECISIONS, SOURCE, ExportOptions
from edgespec.errors import CheckpointError, InputError
from edgespec.export.calibration.calibrate import Calibrate
from edgespec.export.calibration.damage import by_rule, to_widen
from edgespec.export.formats.gguf_tiles import tile_format
from edgespec.export.formats.rounded_matrices import RoundedMatrices
from edgespec.export.formats.rounding import SUPER
from edgespec.export.formats.tile_formats import BLOCK, TILE_FORMATS
from edgespec.models import Checkpoint, Decoder, TensorSource

FLOATS = {"fp32": "f32", "fp16": "f16"}
"""Formats of tiles by the precisions that are floats."""

# Formats of rounded weights: of rows that have super-blocks of 256 weights, and of others.
_SMALLEST = ("q4_k", "q4_0")
_USUAL = ("q4_k", "q5_0")
_WIDE = ("q6_k", "q8_0")
# Bits that weights of layers get more by their damage (see `Calibration`), as many as in
# llama.cpp's Q4_K_M in the mean.
_MORE_BITS = 0.28
# Most bits in which a draft keeps a file's own numbers if nobody asks for another precision.
# Measured: benchmarks/RESULTS.md.
_DRAFT_BITS = 6
_PART_VALUES = 1 << 22  # values whose scales are looked at, at a time


@dataclass(frozen=True)
class Storage:
    """The format of each matrix of a role.

    Attributes:
        precision: the formats of most.
        head: names of the output projection and the embedding.
        kept: matrices that keep the numbers of the checkpoint's file, and their formats of tiles.
        mixed: whether some matrices have more bits than most, see `ExportOptions.precision`.
        wide: these.
        rounded: matrices that are already rounded.
    """

    precision: bundle.Precision
    head: frozenset[str]
    kept: Mapping[str, str] = field(default_factory=dict)
    mixed: bool = False
    wide: frozenset[str] = frozenset()
    rounded: RoundedMatrices | None = None

    def format(self, name: str, width: int) -> str:
        """Returns the format of tiles of a matrix, whose rows have so many weights."""
        if name in self.kept:
            return self.kept[name]
        precision = self.precision.lm_head if name in self.head else self.precision.weights
        if precision in FLOATS:
            return FLOATS[precision]
        if precision == "int8":
            return "q8_0"
        if precision == "int6" or name in self.wide:
            return _WIDE[width % SUPER > 0]
        return (_USUAL if self.mixed else _SMALLEST)[width % SUPER > 0]

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
    formats = {
        each.weight: storage.format(each.weight, each.in_features)
        for sublayer in checkpoint.decoder.sublayers
        for each in sublayer.linears
        if each.weight not in storage.kept
    }
    with RoundedMatrices(folder, formats) as rounded:
        seen = None
        if calibration is not None and storage.precision.weights == INT4:
            seen = calibration(checkpoint, rounded)
        if storage.mixed:
            more = {
                name: TILE_FORMATS[_WIDE[form != _USUAL[0]]].weight_bits
                - TILE_FORMATS[form].weight_bits
                for name, form in formats.items()
            }
            wide = to_widen(seen or by_rule(checkpoint), more, _MORE_BITS)
            wide = _alike(checkpoint.decoder, wide) - storage.kept.keys()
            kept = kept_formats(checkpoint.tensors, wide, 8, as_stored=False)
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
    decoder = checkpoint.decoder
    tensors = checkpoint.tensors
    asked = _asked(name, checkpoint, options)
    vocabulary = _vocabulary(decoder)
    weights = {INT4_SMALL: INT4, SOURCE: "int8"}.get(asked, asked)
    head = options.lm_head_precision or ("int6" if asked == INT4 else weights)
    caches = options.kv_precision or ("fp32" if weights == "fp32" else "fp16")
    if {weights, head} <= FLOATS.keys():
        precision = bundle.Precision(weights, head, caches, 0)
        return Storage(precision, vocabulary)
    layers = [linear.weight for each in decoder.sublayers for linear in each.linears]
    if asked == INT4 and options.lm_head_precision is None and not decoder.tied:
        # It is read and not multiplied with: as in Q4_K_M, it needs no more bits than layers do.
        vocabulary -= {decoder.embedding}
        layers.append(decoder.embedding)
    least = _DRAFT_BITS if asked == INT4_SMALL and options.draft_precision is None else 0
    kept = kept_formats(tensors, layers, max(_bits(weights), least), asked == SOURCE)
    kept |= kept_formats(tensors, vocabulary, max(_bits(head), least), asked == SOURCE)
    precision = bundle.Precision(weights, head, caches, BLOCK)
    return Storage(precision, vocabulary, kept, mixed=asked == INT4)


def _vocabulary(decoder: Decoder) -> frozenset[str]:
    """Returns the names of the output projection, and of tables by token."""
    names = {decoder.embedding, decoder.lm_head.weight}
    if decoder.layer_inputs is not None:
        names |= decoder.layer_inputs.tensors().keys() - decoder.layer_inputs.norm.tensors().keys()
    if decoder.altup is not None:
        names |= {each.weight for each in decoder.altup.linears}
    return frozenset(names)


def _bits(precision: str) -> int:
    return 0 if precision in FLOATS else int(precision[3:])


def kept_formats(
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
        encoding = tile_format(tensors.encoding(name))
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
    zero_points = False
    step = max(1, _PART_VALUES // width)
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
