"""Stores matrices in the quantized blocks of the checkpoint's file, with no second rounding.

MatMulNBits holds 4 or 8 bits with an integer zero point for each block. Blocks of other sizes are
split: a part of a block has its scale and zero point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgespec.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from edgespec.export.formats.blocks import Bytes, Floats
    from edgespec.models.tensors import BlockRows, Blocks, TensorSource

# ONNX Runtime multiplies by blocks of 16 to 256; larger ones than 128 are not faster.
_SIZES = (128, 64, 32, 16)
_TILE_VALUES = 1 << 22


@dataclass(frozen=True)
class Form:
    """The form in which blocks of a file are stored.

    Attributes:
        bits: 4 or 8.
        block_size: number of weights that share a scale.
        scales: data type of the scales, float16 if that represents them exactly, or float32.
        zero_points: whether blocks have a zero point; else it is 2 ** (bits - 1).
    """

    bits: int
    block_size: int
    scales: type[np.floating]
    zero_points: bool


@dataclass(frozen=True)
class KeptRows:
    """Rows of a matrix in a `Form`.

    Attributes:
        packed: [rows, width * bits / 8] uint8, with 4 bits the low nibble first.
        scales: [rows, blocks], float16 or float32.
        zeros: [rows, blocks * bits / 8] uint8, packed like the weights; None: see `Form`.
    """

    packed: Bytes
    scales: npt.NDArray[np.floating]
    zeros: Bytes | None


def form_of(tensors: TensorSource, name: str, most_bits: int) -> Form | None:
    """Returns the form that holds a matrix exactly; None if there is none.

    All scales are read: they decide.

    Args:
        tensors: the checkpoint's tensors.
        name: name of the matrix.
        most_bits: the largest number of bits to store it in.

    Raises:
        CheckpointError: if scales are infinite or NaN.
    """
    blocks = tensors.blocks(name)
    if blocks is None or (bits := _stored_bits(blocks)) > most_bits:
        return None
    if _block_size(tensors, name, blocks, 1) is None:
        return None
    half, largest, zero_points = True, 0.0, False
    for rows in _tiles(tensors, name):
        _check_scales(tensors, name, rows.scales)
        with np.errstate(over="ignore"):  # what overflows is not equal
            half &= bool(np.array_equal(rows.scales, rows.scales.astype(np.float16)))
        largest = max(largest, float(np.abs(rows.scales).max()))
        zero_points |= rows.zeros is not None and bool((rows.zeros != _middle(blocks.bits)).any())
    # Engines may return rows of an embedding in half precision.
    if largest * 2**blocks.bits > np.finfo(np.float16).max:
        return None
    # Where 4-bit zero points do not fill whole bytes, OpenVINO multiplies in floats, slowly, and
    # cannot look up rows.
    size = _block_size(tensors, name, blocks, 2 if zero_points and bits == 4 else 1)
    return (
        None if size is None else Form(bits, size, np.float16 if half else np.float32, zero_points)
    )


def keep(rows: BlockRows, blocks: Blocks, form: Form) -> KeptRows:
    """Stores rows in a form that holds them exactly."""
    shift = np.uint8(_middle(form.bits) - _middle(blocks.bits))
    width = rows.levels.shape[1]
    # What a part of a block has is what the block that its first weight is in has.
    places = np.arange(0, width, form.block_size) // blocks.size
    zeros = None
    if form.zero_points:
        assert rows.zeros is not None
        zeros = _packed(rows.zeros[:, places] + shift, form.bits)
    packed = _packed(rows.levels + shift, form.bits)
    # Sources may give transposed arrays, but rows are written one behind the other.
    return KeptRows(packed, rows.scales[:, places].astype(form.scales, order="C"), zeros)


def _block_size(tensors: TensorSource, name: str, blocks: Blocks, multiple: int) -> int | None:
    """Returns the largest block size that splits a file's blocks; None if there is none.

    The number of blocks of a row is a multiple of `multiple`.
    """
    width = tensors.shape(name)[1]
    common = math.gcd(min(blocks.size, width), width)
    fitting = (size for size in _SIZES if not common % size and not width % (size * multiple))
    return next(fitting, None)


def _packed(numbers: Bytes, bits: int) -> Bytes:
    """Packs numbers [rows, K], an even number of them if they have 4 bits."""
    if bits == 4:
        numbers = numbers[:, 0::2] | numbers[:, 1::2] << np.uint8(4)
    return np.ascontiguousarray(numbers)


def _stored_bits(blocks: Blocks) -> int:
    return 4 if blocks.bits <= 4 else 8


def _middle(bits: int) -> int:
    return 1 << bits - 1


def _tiles(tensors: TensorSource, name: str) -> Iterator[BlockRows]:
    rows, width = tensors.shape(name)
    step = max(1, _TILE_VALUES // width)
    for start in range(0, rows, step):
        yield tensors.read_blocks(name, start, min(start + step, rows))


def _check_scales(tensors: TensorSource, name: str, scales: Floats) -> None:
    if not np.isfinite(scales).all():
        raise CheckpointError(
            f"{tensors.place(name)}: {name} has scales that are infinity or NaN: download the "
            "checkpoint again"
        )
