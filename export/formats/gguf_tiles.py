"""Rows of GGUF files as tiles: bits change their places, and no number is rounded.

How files order bits is told by the `gguf` package, `quants.py` (ggml-org).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from edgespec.export.arrays import Array, Bytes
from edgespec.export.formats.gguf_grids import GRIDS, GridEncoding
from edgespec.export.formats.planes import Quads, put_plane
from edgespec.export.formats.tile_formats import LANES, TILE_FORMATS, TileFormat
from edgespec.export.formats.tiles import (
    by_lane,
    bytes_of,
    empty_tiles,
    tiles_of_fields,
    tiles_of_stored_floats,
)
from edgespec.models.formats.nvfp4 import NVFP4, SCALED

_D = ("d", "<f2")
_M = ("m", "<f2")
_DMIN = ("dmin", "<f2")
_LOW_32 = ("low", "<u4", 4)
_LOW_256 = ("low", "<u4", 32)
_PACKED = ("packed", "u1", 12)

# A block of a file, field by field. `low` and `high` are the levels' bits, whatever has the name
# of a tile's field is copied, and `packed` is taken apart by `_scales`.
_BLOCKS: Mapping[str, np.dtype[np.void]] = {
    "q4_0": np.dtype([_D, _LOW_32]),
    "q4_1": np.dtype([_D, _M, _LOW_32]),
    "q5_0": np.dtype([_D, ("high", "<u4"), _LOW_32]),
    "q5_1": np.dtype([_D, _M, ("high", "<u4"), _LOW_32]),
    "q8_0": np.dtype([_D, ("low", "<u4", 8)]),
    "iq4_nl": np.dtype([_D, _LOW_32]),
    "mxfp4": np.dtype([("e", "u1"), _LOW_32]),
    "q2_k": np.dtype([("s", "u1", 16), ("low", "<u4", 16), _D, _DMIN]),
    "q3_k": np.dtype([("high", "<u4", 8), ("low", "<u4", 16), _PACKED, _D]),
    "q4_k": np.dtype([_D, _DMIN, _PACKED, _LOW_256]),
    "q5_k": np.dtype([_D, _DMIN, _PACKED, ("high", "<u4", 8), _LOW_256]),
    "q6_k": np.dtype([_LOW_256, ("high", "<u4", 16), ("s", "i1", 16), _D]),
    "iq4_xs": np.dtype([_D, ("packed", "u1", 6), _LOW_256]),
    "tq2_0": np.dtype([("low", "<u4", 16), _D]),
    NVFP4: np.dtype([("s", "u1", 4), ("low", "<u4", 8)]),
    SCALED: np.dtype([("d", "<f4"), ("s", "u1", 4), ("low", "<u4", 8)]),
}
# Words that hold neighbouring columns, before those in the next higher bits of the same words.
_RUNS = {"q2_k": 8, "q3_k": 8, "q4_k": 8, "q5_k": 8, "q6_k": 16, "q8_0": 8, "tq2_0": 8, NVFP4: 2}
_RUN, _HIGH_RUN = 4, 8
_NAN = 127  # of 8 bits (e4m3)
_CHUNK = 1 << 18  # weights that are moved at once, so that they stay in a core's L2 cache


def tile_format(encoding: str | None) -> TileFormat | None:
    """Returns the format that has an encoding's numbers; None if none has.

    Args:
        encoding: its name in lower case; None: the weights are in none.
    """
    return TILE_FORMATS.get(_form(encoding or ""))


def _form(encoding: str) -> str:
    grid = GRIDS.get(encoding)
    return grid.form if grid else {SCALED: NVFP4}.get(encoding, encoding)


def tiles_of_gguf(name: str, stored: Bytes) -> Bytes:
    """Stores rows of a GGUF file.

    Args:
        name: the encoding in lower case, one of `q4_0`, `q4_1`, `q5_0`, `q5_1`, `q8_0`, `q2_k` to
            `q6_k`, `iq4_nl`, `iq4_xs`, `mxfp4`, `nvfp4`, `nvfp4_scaled`, `f32`, `f16`, `bf16`,
            `tq2_0` and those of `GRIDS`. `tile_format` is that of the tiles.
        stored: [N, bytes of a row] uint8. Some rows of a matrix are a multiple of 16, but for its
            last ones.

    Returns:
        The tiles, [ceil(N / 16), units, bytes of a unit] uint8.

    Raises:
        ValueError: the rows are not in whole blocks of the encoding.
    """
    grid = GRIDS.get(name)
    kind = TILE_FORMATS[_form(name)]
    stored = np.ascontiguousarray(stored)
    if kind.unit == 1:
        return tiles_of_stored_floats(stored.view(kind.layout["values"].base), name)
    block = grid.block if grid else _BLOCKS[name]
    if stored.shape[1] % block.itemsize:
        raise ValueError(f"{stored.shape[1]} bytes in a row: {name} has blocks of {block.itemsize}")
    blocks = stored.view(block)
    rows, units = blocks.shape
    tiles = empty_tiles(kind, rows, units * kind.unit)
    step = max(1, _CHUNK // (LANES * units * kind.unit))
    for start in range(0, len(tiles), step):
        own = blocks[start * LANES : (start + step) * LANES]
        if grid:
            tiles[start : start + step] = _placed(kind, grid, own)
        else:
            _move(kind, own, tiles[start : start + step])
    return bytes_of(tiles, rows)


def _placed(
    kind: TileFormat, grid: GridEncoding, blocks: npt.NDArray[np.void]
) -> npt.NDArray[np.void]:
    """The tiles [ceil(N / 16), units] of blocks [N, units] whose levels are points of a grid."""
    with np.errstate(invalid="ignore"):  # as in damaged files
        found = grid.read(blocks)
    return tiles_of_fields(kind, found.levels, found.fields).view(kind.layout)[..., 0]


def _move(kind: TileFormat, blocks: npt.NDArray[np.void], tiles: npt.NDArray[np.void]) -> None:
    """Writes blocks [N, units] of a file into tiles [ceil(N / 16), units]."""
    fields = blocks.dtype.names or ()
    numbers = {name: blocks[name] for name in fields if name in (kind.layout.names or ())}
    if "packed" in fields:
        numbers |= _scales(kind.name, blocks["packed"])
    if kind.name == NVFP4:
        numbers |= _float_scales(blocks)
    for name, found in numbers.items():
        tiles[name] = by_lane(found)
    low = _spread(by_lane(blocks["low"]), kind.planes[0], _RUNS.get(kind.name, _RUN))
    if kind.name == "q8_0":
        low ^= np.uint32(0x80808080)  # signed bytes, from -128 on
    planes = tiles["levels"]
    bits = kind.planes[0]
    put_plane(planes[..., :bits, :], low, bits)
    if "high" in fields:
        words = by_lane(blocks["high"])
        rest = kind.planes[1]
        high = _by_bit(words) if words.ndim == 3 else _spread(words, rest, _HIGH_RUN)
        put_plane(planes[..., bits:, :], high, rest)


def _spread(words: Quads, bits: int, run: int) -> Quads:
    """Takes words [tiles, units, n, 16] apart, each byte of which has the levels of some columns.

    Args:
        words: the words in a file's order.
        bits: bits of a level.
        run: see `_RUNS`.
    """
    tiles, units, count, _ = words.shape
    words = np.ascontiguousarray(words).reshape(tiles, units, count // run, 1, run, LANES)
    shifts = np.arange(0, 8, bits, dtype=np.uint32)[:, None, None]
    levels = words >> shifts
    levels &= np.uint32((2**bits - 1) * 0x01010101)
    return levels.reshape(tiles, units, -1, 8, LANES)


def _by_bit(words: Quads) -> Quads:
    """Takes words [tiles, units, 16] apart, bit k of which belongs to column k."""
    nibbles = words[:, :, None, None] >> np.arange(0, 32, 4, dtype=np.uint32)[:, None]
    nibbles &= np.uint32(15)
    return nibbles * np.uint32(0x00204081) & np.uint32(0x01010101)  # bit i to byte i


def _float_scales(blocks: npt.NDArray[np.void]) -> dict[str, Array]:
    """The scales of NVFP4, whose table is doubled. What is no number is 0, as in `gguf.quants`."""
    bits = blocks["s"]
    whole = blocks["d"] if "d" in (blocks.dtype.names or ()) else np.ones(blocks.shape, np.float32)
    return {"s": np.where(bits == _NAN, np.uint8(0), bits & 127), "d": whole * 128}


def _scales(name: str, packed: Bytes) -> dict[str, Array]:
    """Takes the 6-bit scales `packed` [N, units, n] apart; signed ones are stored with 32 more."""
    if name in ("q4_k", "q5_k"):
        first = packed[..., :4]
        second = packed[..., 4:8]
        third = packed[..., 8:]
        return {
            "s": np.concatenate([first & 63, third & 15 | first >> 2 & 48], axis=-1),
            "m": np.concatenate([second & 63, third >> 4 | second >> 2 & 48], axis=-1),
        }
    if name == "q3_k":
        low = np.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], axis=-1)
        high = np.concatenate([packed[..., 8:] >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    else:  # a 16-bit word of high bits, from the lowest on, and bytes of two scales' low ones
        low = np.stack([packed[..., 2:] & 15, packed[..., 2:] >> 4], axis=-1)
        low = low.reshape(*packed.shape[:2], 8)
        high = np.stack([packed[..., :2] >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
        high = high.reshape(*packed.shape[:2], 8)
    return {"s": (low | high << 4).view(np.int8) - np.int8(32)}
