"""Blockwise symmetric weight quantization with scales chosen for least (weighted) squared error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

# Where the block's largest weight (by magnitude) lands, in quantization steps. Beyond the range it
# is clipped, which the finer steps of the other weights can outweigh. The first is the usual scale.
_REACH = {4: (7.0, 7.7, 8.4, 9.4), 7: (63.0,), 8: (127.0,)}
# Blocks without a larger weight become zeros: their steps would leave float32.
_NOTHING = 1e-18
# Smaller scales keep fewer than 7 bits in half precision, which counts its last steps there.
_FAINT = 2.0**-18
# Beyond it a weight would leave half precision, which engines may give rows of an embedding in.
_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class QuantizedRows:
    """Rows of a weight matrix in the layout of MatMulNBits and GatherBlockQuantized.

    Attributes:
        packed: [rows, blocks, block_size] uint8; of 4 bits two in each, low nibble first.
        scales: [rows, blocks] float16; the zero point is 2 ** (bits - 1).
        squared_error: sum of squared differences to the original.
        squared_norm: sum of squares of the original.
        faint_norm: of these, in blocks that are too small for a scale in half precision.
    """

    packed: Bytes
    scales: npt.NDArray[np.float16]
    squared_error: float
    squared_norm: float
    faint_norm: float = 0.0


def quantize_rows(weights: Floats, bits: int, block_size: int) -> QuantizedRows:
    """Quantize a [rows, K] matrix; K is padded with zeros to whole blocks.

    Several clipping points are tried per block. For each, the integers are rounded, the scale is
    the least-squares one for them, s = <w, q> / <q, q>, in half precision, and the error is that
    of this rounded scale: <w, w> - 2 s <w, q> + s² <q, q>. For 4 bits, integers rounded
    anew by the best scale are the last trial. The trial with the least error wins.

    Args:
        weights: [rows, K] float32, none beyond what half precision holds.
        bits: 4, 7 or 8; of 7 there is one in each byte.
        block_size: consecutive weights along K that share a scale.
    """
    search = _searched(weights, bits, block_size, None)
    rows = len(weights)
    return pack_rows(
        weights, search.levels.reshape(rows, -1), search.scales.reshape(rows, -1), bits
    )


def best_scales(weights: Floats, bits: int, block_size: int, importance: Floats) -> Floats:
    """The scales that `quantize_rows` would find if columns counted by importance.

    Where that is the mean square of what a column is multiplied with, the error is that of the
    layer's results, but for what columns have in common.

    Args:
        weights: [rows, K] float32.
        bits: see `quantize_rows`.
        block_size: see there.
        importance: [K] float32, of each column, above 0.

    Returns:
        [rows, blocks] float32, of values that half precision holds.
    """
    search = _searched(weights, bits, block_size, importance)
    return search.scales.reshape(len(weights), -1)


def pack_rows(weights: Floats, levels: Floats, scales: Floats, bits: int) -> QuantizedRows:
    """Store integers, and tell how far they are from the original.

    Args:
        weights: [rows, K] float32, the original.
        levels: [rows, blocks * block_size] float32, whole numbers around 0.
        scales: [rows, blocks] float32, of values that half precision holds.
        bits: of the integers.
    """
    rows, blocks = scales.shape
    if padding := levels.shape[1] - weights.shape[1]:
        weights = np.pad(weights, ((0, 0), (0, padding)))
    by_block = weights.reshape(rows, blocks, -1)
    norm = np.einsum("rbk,rbk->rb", by_block, by_block)
    integers = levels.reshape(by_block.shape)
    off = integers * scales[:, :, None]
    off -= by_block
    # From the differences, since gains of many bits hide it.
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
    """The best integers and scale of each block so far.

    Args:
        weights: [blocks, block_size] float32.
        bits: of the integers.
        importance: [blocks of a row, block_size] float32; None: all weights are alike.

    Attributes:
        levels: [blocks, block_size] float32, whole numbers.
        scales: [blocks] float32, of values that half precision holds.
        gains: [blocks] float32, by how much they lower the squared error from that of zeros.
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
        """Try the steps of which each block's largest weight has so many."""
        # It goes to the negative end, which has one level more.
        self._try(np.divide(-reach, self._extreme, dtype=np.float32))

    def by_scales(self) -> None:
        """Try the scales found so far."""
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
    """The [rows, blocks * block_size] float32 matrix that the engines see."""
    packed = rows.packed
    if bits == 4:
        packed = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:2], -1)
    centred = packed.astype(np.float32) - 2 ** (bits - 1)
    scales = rows.scales.astype(np.float32)
    weights: Floats = (centred * scales[:, :, None]).reshape(len(packed), -1)
    return weights
