"""Blockwise symmetric weight quantization with scales chosen for least squared error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

# Where the block's largest weight (by magnitude) lands, in quantization steps. Beyond the range it
# is clipped, which the finer steps of the other weights can outweigh. The first is the usual scale.
_REACH = {4: (7.0, 8.0, 8.6, 9.3, 10.2), 8: (127.0,)}
# Blocks without a larger weight become zeros: their squares would leave float32.
_NOTHING = 1e-18


@dataclass(frozen=True)
class QuantizedRows:
    """Rows of a weight matrix in the layout of MatMulNBits and GatherBlockQuantized.

    Attributes:
        packed: [rows, blocks, block_size * bits / 8] uint8, low nibble first.
        scales: [rows, blocks] float32; the zero point is 2 ** (bits - 1).
        squared_error: sum of squared differences to the original.
        squared_norm: sum of squares of the original.
    """

    packed: Bytes
    scales: Floats
    squared_error: float
    squared_norm: float


def quantize_rows(weights: Floats, bits: int, block_size: int) -> QuantizedRows:
    """Quantize a [rows, K] matrix; K is padded with zeros to whole blocks.

    Several clipping points are tried per block. For each, the integers are rounded and the scale
    is then the least-squares one, s = <w, q> / <q, q>, whose error is <w, w> - <w, q>² / <q, q>;
    the clipping point with the largest <w, q>² / <q, q> wins.

    Args:
        weights: [rows, K] float32.
        bits: 4 or 8.
        block_size: consecutive weights along K that share a scale.
    """
    rows, width = weights.shape
    blocks = -(-width // block_size)
    if width % block_size:
        weights = np.pad(weights, ((0, 0), (0, blocks * block_size - width)))
    flat = weights.reshape(rows * blocks, block_size)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    extreme = flat[np.arange(len(flat)), np.abs(flat).argmax(axis=1)]
    extreme[np.abs(extreme) < _NOTHING] = 1
    best_gain = np.full(len(flat), -1.0, np.float32)
    scales = np.zeros(len(flat), np.float32)
    levels = np.zeros(flat.shape, np.float32)
    trial = np.empty_like(flat)
    for reach in _REACH[bits]:
        # The largest weight goes to the negative end, which has one level more.
        np.multiply(flat, (-reach / extreme)[:, None], out=trial)
        np.rint(trial, out=trial)
        np.clip(trial, low, high, out=trial)
        cross = np.einsum("bk,bk->b", flat, trial)
        square = np.einsum("bk,bk->b", trial, trial)
        square[square == 0] = 1
        gain = cross * cross / square
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        scales = np.where(better, cross / square, scales)
        np.copyto(levels, trial, where=better[:, None])

    norm = np.einsum("bk,bk->b", flat, flat)
    error = float(np.maximum(norm - best_gain, 0).sum(dtype=np.float64))
    stored = (levels - low).astype(np.uint8)
    if bits == 4:
        stored = stored[:, 0::2] | stored[:, 1::2] << 4
    return QuantizedRows(
        stored.reshape(rows, blocks, block_size * bits // 8),
        scales.reshape(rows, blocks),
        error,
        float(norm.sum(dtype=np.float64)),
    )


def dequantize_rows(rows: QuantizedRows, bits: int) -> Floats:
    """The [rows, blocks * block_size] float32 matrix that the engines see."""
    packed = rows.packed
    if bits == 4:
        packed = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:2], -1)
    centred = packed.astype(np.float32) - 2 ** (bits - 1)
    weights: Floats = (centred * rows.scales[:, :, None]).reshape(len(packed), -1)
    return weights
