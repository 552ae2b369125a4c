"""Levels of tiles in planes of bits, the order in which native kernels read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Quads = npt.NDArray[np.uint32]
"""[tiles, units, blocks, 8, 16] uint32: byte i of quad j is the level of column 4 j + i."""

_Tiles = npt.NDArray[np.void]

_QUADS = 8  # of a block
_SHIFTED = 2  # the bit of a level that two quads have in common


def put_levels(stored: _Tiles, widths: Sequence[int], quads: Quads) -> None:
    """Writes levels into tiles [tiles, units].

    Args:
        stored: the tiles. Where they have `blocks`, bit 2 of levels is the same in a pair of quads.
        widths: bits of each plane, the lowest bits of the levels first.
        quads: the levels.
    """
    planes = _planes_of(stored)
    start = 0
    for bits in widths:
        mask = np.uint32((2**bits - 1) * 0x01010101)
        put_plane(planes[..., start : start + bits, :], quads >> np.uint32(start) & mask, bits)
        start += bits
    if _has_blocks(stored):
        shifted = (quads[..., ::2, :] >> np.uint32(_SHIFTED) & np.uint32(1)).astype(np.uint8)
        packed = np.packbits(shifted, axis=-1, bitorder="little")
        stored["blocks"]["shifts"] = packed.view("<u2")[..., 0]


def levels_in(stored: _Tiles, widths: Sequence[int]) -> Quads:
    """The levels of tiles: what `put_levels` wrote."""
    planes = _planes_of(stored)
    quads = np.zeros((*planes.shape[:-2], _QUADS, planes.shape[-1]), np.uint32)
    start = 0
    for bits in widths:
        quads |= _plane(planes[..., start : start + bits, :], bits) << np.uint32(start)
        start += bits
    if _has_blocks(stored):
        lanes = np.ascontiguousarray(stored["blocks"]["shifts"])[..., None].view(np.uint8)
        shifted = np.unpackbits(lanes, axis=-1, bitorder="little").astype(np.uint32)
        quads |= np.repeat(shifted * np.uint32(0x01010101 << _SHIFTED), 2, axis=-2)
    return quads


def clear_lanes(stored: _Tiles, first: int) -> None:
    """Sets all that belongs to the last lanes of the last tile to 0, from a lane on."""
    for field in stored.dtype.names or ():
        if field == "blocks":
            stored[field]["levels"][-1, ..., first:] = 0
            stored[field]["shifts"][-1] &= (1 << first) - 1
        else:
            stored[field][-1, ..., first:] = 0


def _planes_of(stored: _Tiles) -> Quads:
    """The planes of tiles, [tiles, units, blocks of 32, bits, 16]."""
    planes: Quads = (stored["blocks"] if _has_blocks(stored) else stored)["levels"]
    return planes


def put_plane(plane: Quads, quads: Quads, bits: int) -> None:
    """Writes levels, or some bits of them, into a plane.

    Args:
        plane: [tiles, units, blocks, bits, 16] uint32.
        quads: levels less than 2 ** bits.
        bits: 1, 2, 4 or 8.
    """
    plane[...] = quads[..., _members(bits, 0), :]
    for place in range(1, 8 // bits):
        plane |= quads[..., _members(bits, place), :] << np.uint32(place * bits)


def _plane(plane: Quads, bits: int) -> Quads:
    """The levels of a plane: what `put_plane` wrote."""
    quads = np.empty((*plane.shape[:-2], _QUADS, plane.shape[-1]), np.uint32)
    mask = np.uint32((2**bits - 1) * 0x01010101)
    for place in range(8 // bits):
        quads[..., _members(bits, place), :] = plane >> np.uint32(place * bits) & mask
    return quads


def _members(bits: int, place: int) -> slice:
    """The quads, one for each row of a plane, whose bits are from place * bits on."""
    if bits == 4:  # a load, a mask and a shift give kernels two halves of a block
        return slice(4 * place, 4 * place + 4)
    return slice(place, None, 8 // bits)


def _has_blocks(stored: _Tiles) -> bool:
    return "blocks" in (stored.dtype.names or ())
