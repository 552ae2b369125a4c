"""Blockwise symmetric weight quantization with scales chosen for least (weighted) squared error."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLOCK_SIZES = (128, 64, 32)
"""Numbers of weights that may share a scale."""

_log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

# The scales to try: magnitude of the block's largest weight in quantization steps. If it exceeds
# the range, that weight is clipped and the others get finer steps. The first is the usual scale.
_REACH = {4: (7.0, 7.7, 8.4, 9.4), 7: (63.0,), 8: (127.0,)}
# Blocks without a larger weight become zeros: their inverse scales would overflow float32.
_NOTHING = 1e-18
# Smaller scales have fewer than 7 bits in half precision, where they are subnormal.
_FAINT = 2.0**-18
# The largest weight: engines may return embedding rows in half precision.
_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class QuantizedRows:
    """Rows of a weight matrix in the layout of MatMulNBits and GatherBlockQuantized.

    Attributes:
        packed: [rows, blocks, block_size] uint8; with 4 bits, [rows, blocks, block_size / 2] with
            two weights in each byte, low nibble first.
        scales: [rows, blocks] float16; the zero point is 2 ** (bits - 1).
        squared_error: sum of squared differences to the original.
        squared_norm: sum of squares of the original.
        faint_norm: part of `squared_norm` in blocks whose scales are too small for half precision.
    """

    packed: Bytes
    scales: npt.NDArray[np.float16]
    squared_error: float
    squared_norm: float
    faint_norm: float = 0.0


def choose_block_size(name: str, widths: Iterable[int], asked: int | None = None) -> int:
    """Returns the largest block size that divides all row sizes, or the one that was asked for.

    If it divides not all, this is logged.

    Args:
        name: name of the role, for the log.
        widths: row sizes of the matrices.
        asked: block size that the user wants; None for the largest that fits.
    """
    sizes = sorted(set(widths))
    if asked is None:
        fitting = [b for b in BLOCK_SIZES if all(width % b == 0 for width in sizes)]
        if fitting:
            return fitting[0]
        asked = BLOCK_SIZES[-1]
    misfits = [width for width in sizes if width % asked]
    if misfits:
        _log.warning(
            "%s: block size %d does not divide the row sizes %s, so rows are padded, which makes "
            "the model slower",
            name, asked, ", ".join(map(str, misfits)),
        )  # fmt: skip
    return asked


def quantize_rows(weights: Floats, bits: int, block_size: int) -> QuantizedRows:
    """Quantizes a [rows, K] matrix; K is padded with zeros to whole blocks.

    Several clipping points are tried per block. For each, weights are rounded to integers q, the
    scale is the least-squares one, s = <w, q> / <q, q>, rounded to half precision, and the error is
    <w, w> - 2 s <w, q> + s² <q, q>. For 4 bits, the last trial rounds the weights again with the
    best scale so far. The trial with the least error is used.

    Args:
        weights: [rows, K] float32, within the range of half precision.
        bits: 4, 7 or 8; 7 bits are stored in one byte each.
        block_size: number of consecutive weights along K that share a scale.
    """
    search = _searched(weights, bits, block_size, None)
    rows = len(weights)
    return pack_rows(
        weights, search.levels.reshape(rows, -1), search.scales.reshape(rows, -1), bits
    )


def best_scales(weights: Floats, bits: int, block_size: int, importance: Floats) -> Floats:
    """Returns the scales of `quantize_rows` with squared errors weighted by column.

    If the weight of a column is the mean square of its inputs, the error is that of the layer's
    output, except for correlations between columns.

    Args:
        weights: [rows, K] float32.
        bits: see `quantize_rows`.
        block_size: see `quantize_rows`.
        importance: [K] float32, the positive weight of each column.

    Returns:
        [rows, blocks] float32, rounded to half precision.
    """
    search = _searched(weights, bits, block_size, importance)
    return search.scales.reshape(len(weights), -1)


def pack_rows(weights: Floats, levels: Floats, scales: Floats, bits: int) -> QuantizedRows:
    """Packs quantized integers, and computes their error.

    Args:
        weights: [rows, K] float32, the original weights.
        levels: [rows, blocks * block_size] float32, whole numbers around 0.
        scales: [rows, blocks] float32, rounded to half precision.
        bits: bits of the integers.
    """
    rows, blocks = scales.shape
    if padding := levels.shape[1] - weights.shape[1]:
        weights = np.pad(weights, ((0, 0), (0, padding)))
    by_block = weights.reshape(rows, blocks, -1)
    norm = np.einsum("rbk,rbk->rb", by_block, by_block)
    integers = levels.reshape(by_block.shape)
    off = integers * scales[:, :, None]
    off -= by_block
    # Computed from the differences: with many bits, a difference of large sums would be inexact.
    error = np.einsum("rbk,rbk->rb", off, off).sum(dtype=np.float64)
    np.add(integers, 2 ** (bits - 1), out=off)
    stored: Bytes = off.astype(np.uint8)
    if bits == 4:
        stored = np.bitwise_or(stored[:, :, 0::2], stored[:, :, 1::2] << 4, dtype=np.uint8)
    return QuantizedRows(
        stored,
        scales.astype(np.float16),
        float(error),
        float(norm.sum(dtype=np.float64)),
        float(norm[np.abs(scales) < _FAINT].sum(dtype=np.float64)),
    )


def _searched(weights: Floats, bits: int, block_size: int, importance: Floats | None) -> _Search:
    rows, width = weights.shape
    blocks = -(-width // block_size)
    padding = blocks * block_size - width
    if padding:
        weights = np.pad(weights, ((0, 0), (0, padding)))
        importance = None if importance is None else np.pad(importance, (0, padding))
    by_block = None if importance is None else importance.reshape(blocks, block_size)
    search = _Search(weights.reshape(rows * blocks, block_size), bits, by_block)
    for reach in _REACH[bits]:
        search.by_largest(reach)
    if bits == 4:  # of 256 levels, the first rounding leaves nothing to gain
        search.by_scales()
    return search


class _Search:
    """Searches the best integers and scale of each block.

    Args:
        weights: [blocks, block_size] float32.
        bits: bits of the integers.
        importance: [blocks of a row, block_size] float32, weights of squared errors; None: all 1.

    Attributes:
        levels: [blocks, block_size] float32, the best whole numbers so far.
        scales: [blocks] float32, their scales, rounded to half precision.
        gains: [blocks] float32, how much lower the squared error is than that of zeros.
    """

    def __init__(self, weights: Floats, bits: int, importance: Floats | None) -> None:
        self.weights = weights
        self._importance = importance
        self.levels = np.zeros(weights.shape, np.float32)
        self.scales = np.zeros(len(weights), np.float32)
        self.gains = np.full(len(weights), -1.0, np.float32)
        self._range = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        extreme = weights[np.arange(len(weights)), np.abs(weights).argmax(axis=1)]
        extreme[np.abs(extreme) < _NOTHING] = 1
        self._extreme = extreme
        self._trial = np.empty_like(weights)
        self._weighted = self._trial if importance is None else np.empty_like(weights)

    def by_largest(self, reach: float) -> None:
        """Tries the scales with which each block's largest weight is `reach` steps."""
        # The largest weight is mapped to the negative end, which has one level more.
        self._try(np.divide(-reach, self._extreme, dtype=np.float32))

    def by_scales(self) -> None:
        """Rounds the weights again with the scales found so far."""
        steps = np.where(self.scales == 0, 1, self.scales)
        self._try(np.divide(1, steps, dtype=np.float32))

    def _try(self, factors: Floats) -> None:
        low, high = self._range
        trial = np.multiply(self.weights, factors[:, None], out=self._trial)
        np.rint(trial, out=trial)
        np.clip(trial, low, high, out=trial)
        weighted = self._weighted
        if self._importance is not None:
            by_row = (-1, *self._importance.shape)
            np.multiply(trial.reshape(by_row), self._importance, out=weighted.reshape(by_row))
        cross = np.einsum("bk,bk->b", self.weights, weighted)
        square = np.einsum("bk,bk->b", trial, weighted)
        square[square == 0] = 1
        scales = np.clip(cross / square, _LARGEST / low, -_LARGEST / low)
        scales = scales.astype(np.float16).astype(np.float32)
        gains = scales * (2 * cross - scales * square)
        better = gains > self.gains
        np.copyto(self.gains, gains, where=better)
        np.copyto(self.scales, scales, where=better)
        np.copyto(self.levels, trial, where=better[:, None])


def dequantize_rows(rows: QuantizedRows, bits: int) -> Floats:
    """Returns the [rows, blocks * block_size] float32 matrix that engines compute with."""
    packed = rows.packed
    if bits == 4:
        packed = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:2], -1)
    centred = packed.astype(np.float32) - 2 ** (bits - 1)
    scales = rows.scales.astype(np.float32)
    weights: Floats = (centred * scales[:, :, None]).reshape(len(packed), -1)
    return weights
