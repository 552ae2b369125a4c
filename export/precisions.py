"""Chooses the precision of a role's matrices: asked for, kept from the file, or widened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec import bundle
from edgespec.errors import InputError
from edgespec.export.calibration.calibrate import (
    Calibrate,
    Calibration,
    to_widen,
    widened_by_rule,
)
from edgespec.export.formats.blocks import choose_block_size
from edgespec.export.formats.rounded_matrices import RoundedMatrices
from edgespec.export.keeping import kept_layers, kept_vocabulary
from edgespec.models import Checkpoint

if TYPE_CHECKING:
    from edgespec.export.exporter import ExportOptions

INT4, INT4_SMALL, SOURCE = "int4", "int4-small", "source"
PRECISIONS = (INT4, INT4_SMALL, SOURCE, "int8", "fp16", "fp32")
# Matrices are widened from 4 to 8 bits until the damage of the others (see `Calibration`) is at
# most _DAMAGE, or a share of all weights is widened. Small models lose more by 4 bits and are
# cheaper to widen, so their share is larger. Measured: benchmarks/RESULTS.md.
_DAMAGE, _WIDE_SHARE, _WIDE_SHARE_OF_SMALL, _SMALL = 0.01, 0.25, 0.45, 10**9


def asked_precision(name: str, checkpoint: Checkpoint, options: ExportOptions) -> str:
    """Returns the requested precision of a role, one of `PRECISIONS`.

    Raises:
        InputError: if it is that of the source, which is not quantized.
    """
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


def chosen_precision(name: str, checkpoint: Checkpoint, options: ExportOptions) -> bundle.Precision:
    """Returns a role's precision before calibration, with the matrices that are kept."""
    decoder, tensors = checkpoint.decoder, checkpoint.tensors
    asked = asked_precision(name, checkpoint, options)
    weights = {INT4_SMALL: INT4, SOURCE: "int8"}.get(asked, asked)
    head = options.lm_head_precision or ("int8" if asked == INT4 else weights)
    if not {weights, head} & {INT4, "int8"}:
        return bundle.Precision(weights, head, options.kv_precision, 0)
    linears = [linear for each in decoder.sublayers for linear in each.linears]
    block = choose_block_size(name, (each.in_features for each in linears), options.block_size)
    kept = kept_layers(tensors, (each.weight for each in linears), weights)
    kept += kept_vocabulary(tensors, decoder, head)
    return bundle.Precision(weights, head, options.kv_precision, block, scales="fp16", kept=kept)


@contextmanager
def rounding(
    name: str,
    checkpoint: Checkpoint,
    options: ExportOptions,
    calibration: Calibrate | None,
    folder: Path,
) -> Iterator[tuple[bundle.Precision, RoundedMatrices]]:
    """Gives a role's precision, and the matrices that were rounded by a calibration.

    Args:
        name: name of the role.
        checkpoint: the model.
        options: options of the export.
        calibration: see `write_bundle`.
        folder: folder with room for these matrices, which are deleted at the end of the `with`.
    """
    precision = chosen_precision(name, checkpoint, options)
    with RoundedMatrices(folder, precision.exact) as rounded:
        seen = calibrated(checkpoint, precision, calibration, rounded)
        if asked_precision(name, checkpoint, options) == INT4:
            precision = widened(precision, checkpoint, seen)
        yield precision, rounded


def calibrated(
    checkpoint: Checkpoint,
    precision: bundle.Precision,
    calibration: Calibrate | None,
    rounded: RoundedMatrices,
) -> Calibration | None:
    """Calibrates a role of 4 bits if possible; puts its rounded matrices into `rounded`."""
    if calibration is None or precision.weights != INT4:
        return None
    return calibration(checkpoint, precision.block_size, rounded)


def widened(
    precision: bundle.Precision, checkpoint: Checkpoint, seen: Calibration | None
) -> bundle.Precision:
    """Returns a precision in which the matrices that need it most have 8 bits.

    Args:
        precision: a role's precision in 4 bits.
        checkpoint: the model.
        seen: the result of its calibration; None: there was none.
    """
    decoder = checkpoint.decoder
    if seen is None:
        chosen = widened_by_rule(decoder)
    else:
        small = sum(seen.sizes.values()) < _SMALL
        chosen = to_widen(seen, _DAMAGE, _WIDE_SHARE_OF_SMALL if small else _WIDE_SHARE)
    wide = [each for each in decoder.tensors() if each in chosen - precision.exact]
    also = kept_layers(checkpoint.tensors, wide, "int8")
    precision = replace(precision, kept=precision.kept + also)
    return replace(precision, wide=tuple(each for each in wide if each not in precision.exact))
