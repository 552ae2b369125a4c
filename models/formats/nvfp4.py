"""NVFP4 (NVIDIA, 2025): floats of 4 bits, and a scale in 8 bits (e4m3) for each 16 of them.

GGUF's blocks are of 64: four scales, then for each 16 weights the first 8 in low and the others in
high halves of bytes. Where the whole matrix has a scale, too, it stands before each block here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NVFP4 = "nvfp4"
SCALED = "nvfp4_scaled"
"""The encodings of matrices without and with a scale of the whole, see `TensorSource.encoding`."""

BLOCK, PART = 64, 16
"""Weights of a block, and those that share a scale."""

_PARTS = BLOCK // PART
_STORED = np.dtype([("s", "u1", _PARTS), ("low", "u1", (_PARTS, PART // 2))])
_SCALED = np.dtype([("d", "<f4"), *((name, _STORED[name]) for name in ("s", "low"))])
_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def scaled(stored: NDArray[np.uint8], scale: float) -> NDArray[np.uint8]:
    """Puts the scale of the whole matrix before each block.

    Args:
        stored: Rows of blocks without, [rows, bytes].
        scale: The scale.
    """
    blocks = np.ascontiguousarray(stored).view(_STORED)
    found = np.empty(blocks.shape, _SCALED)
    found["d"] = scale
    for name in ("s", "low"):
        found[name] = blocks[name]
    return found.view(np.uint8)


def blocks_of(
    levels: NDArray[np.uint8], scales: NDArray[np.uint8], scale: float
) -> NDArray[np.uint8]:
    """Puts rows of a checkpoint into blocks with the scale of the whole matrix.

    Args:
        levels: [rows, width / 2], two neighbouring weights in a byte, the first in the low half.
        scales: [rows, width / 16], the bits of e4m3.
        scale: That of the whole matrix.
    """
    rows = len(levels)
    found = np.empty((rows, scales.shape[1] // _PARTS), _SCALED)
    found["d"] = scale
    found["s"] = scales.reshape(rows, -1, _PARTS)
    pairs = levels.reshape(rows, -1, _PARTS, PART // 2)
    single = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], PART)
    found["low"] = single[..., : PART // 2] | single[..., PART // 2 :] << 4
    return found.view(np.uint8)


def values(encoded: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The weights of rows of blocks with the scale of the whole matrix, [rows, width]."""
    blocks = np.ascontiguousarray(encoded).view(_SCALED)
    scales = float8(blocks["s"]) * (blocks["d"][..., None] * np.float32(256))
    low = blocks["low"]
    levels = np.concatenate([low & 15, low >> 4], axis=-1)
    signs = np.where(levels > 7, np.float32(-1), np.float32(1))
    weights: NDArray[np.float32] = _VALUES[levels & 7] * signs * scales[..., None]
    return weights.reshape(len(encoded), -1)


def float8(bits: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The numbers of bits of e4m3 without a sign, divided by 2^8, as half precision has them."""
    halves = (bits.astype(np.uint16) & 127) << 7
    numbers: NDArray[np.float32] = halves.view(np.float16).astype(np.float32)
    return numbers
