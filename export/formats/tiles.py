"""Matrices in tiles: written, and taken apart again. See `tile_formats`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from edgespec.export.arrays import Array, Bytes, Floats
from edgespec.export.formats.planes import clear_lanes, levels_in, put_levels, put_plane
from edgespec.export.formats.tile_formats import BLOCK, LANES, TILE_FORMATS, TileFormat
from edgespec.models.formats.nvfp4 import float8

_RAISED = 128  # what is added to numbers of tables where they are levels
_EXPONENT_BIAS = 128  # one more than that of E8M0, since `_FP4` is doubled
_SHIFT_OF_IQ1_S = np.float32(1 / 8)


def tiles_of_levels(
    levels: Bytes,
    scales: npt.NDArray[np.floating],
    zeros: Bytes | None,
    bits: int,
    block_size: int,
) -> tuple[str, Bytes]:
    """Stores integers with a scale for each block of a row: weight = (level - zero) * scale.

    Args:
        levels: [N, K] uint8, less than 2 ** bits. Some rows of a matrix are a multiple of 16,
            but for its last ones.
        scales: [N, blocks], numbers that half precision has.
        zeros: [N, blocks] uint8, less than 2 ** bits; None: all are 2 ** (bits - 1).
        bits: 4 or 8.
        block_size: number of columns of a block: a multiple of 32, or all of them.

    Returns:
        The name of the format, and the tiles, [ceil(N / 16), ceil(K / 32), bytes of a unit] uint8.

    Raises:
        ValueError: half precision does not have a scale, or tiles do not have such blocks.
    """
    rows, columns = levels.shape
    if bits not in (4, 8) or (block_size % BLOCK and block_size < columns):
        raise ValueError(
            f"blocks of {block_size} weights of {bits} bits: tiles have 4 or 8 bits, and blocks of "
            f"a multiple of {BLOCK} weights"
        )
    with np.errstate(over="ignore"):  # what overflows is not equal
        halves = scales.astype(np.float16)
    if not np.array_equal(halves, scales):
        raise ValueError("half precision does not have all scales: store the weights as floats")
    kind = TILE_FORMATS[f"q{bits}_{'0' if zeros is None else 'z'}"]
    _, units, _ = kind.shape(rows, columns)
    block_of = np.arange(units) * BLOCK // block_size
    if missing := -columns % BLOCK:  # they are weights of 0
        none = np.full((rows, 1), kind.zero, np.uint8) if zeros is None else zeros[:, -1:]
        levels = np.concatenate([levels, np.repeat(none, missing, axis=1)], axis=1)
    stored = empty_tiles(kind, rows, columns)
    stored["d"] = by_lane(halves[:, block_of])
    if zeros is not None:
        stored["z"] = by_lane(zeros[:, block_of])
    words = np.ascontiguousarray(levels).view("<u4").reshape(rows, units, 1, BLOCK // 4)
    put_plane(stored["levels"], np.ascontiguousarray(by_lane(words)), bits)
    return kind.name, bytes_of(stored, rows)


def tiles_of_fields(kind: TileFormat, levels: Bytes, fields: Mapping[str, Array]) -> Bytes:
    """Stores levels as they are.

    Args:
        kind: the format.
        levels: [N, K] uint8, K a multiple of the format's unit.
        fields: [N, numbers of a row] of each field beside the levels.

    Returns:
        See `tiles_of_levels`.
    """
    rows, columns = levels.shape
    stored = empty_tiles(kind, rows, columns)
    for name, each in fields.items():
        shape = kind.layout[name].shape[:-1]
        stored[name] = by_lane(np.ascontiguousarray(each).reshape(rows, -1, *shape))
    words = (
        np.ascontiguousarray(levels).view("<u4").reshape(rows, -1, kind.unit // BLOCK, BLOCK // 4)
    )
    quads = np.ascontiguousarray(by_lane(words))
    put_levels(stored, kind.planes, quads)
    return bytes_of(stored, rows)


def tiles_of_floats(values: Floats, name: str) -> Bytes:
    """Stores floats, each rounded to the nearest of the format.

    Args:
        values: [N, K] float32. Some rows of a matrix are a multiple of 16, but for its last ones.
        name: `f32`, `f16` or `bf16`.

    Returns:
        The tiles, [ceil(N / 16), K, bytes of a unit] uint8. Numbers beyond the format's range are
        infinite in them: see `edgespec.export.formats.checked.check_range`.
    """
    dtype = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[name]
    with np.errstate(over="ignore"):
        return tiles_of_stored_floats(values.astype(dtype), name)


def tiles_of_stored_floats(values: Array, name: str) -> Bytes:
    """Stores floats [N, K] that have the format's size already, see `tiles_of_floats`."""
    kind = TILE_FORMATS[name]
    stored = empty_tiles(kind, *values.shape)
    stored["values"] = by_lane(values.view(stored["values"].dtype))
    return bytes_of(stored, len(values))


@dataclass(frozen=True)
class TileLevels:
    """Some rows of a matrix as integers: weight = scale * (level - zero) - minimum.

    Attributes:
        levels: [N, K] uint8, of columns up to a whole unit.
        bits: bits of a level.
        zeros: [N, blocks] uint8, or [1, 1] where it is the same everywhere.
        scales: [N, blocks] float32.
        minima: [N, blocks] float32; None: all are 0.
    """

    levels: Bytes
    bits: int
    zeros: Bytes
    scales: Floats
    minima: Floats | None


def levels_of_tiles(name: str, tiles: Bytes, rows: int) -> TileLevels:
    """Takes tiles of integers apart; scales and minima are exact products of what is stored.

    Args:
        name: name of the format. Of those with a table, levels are its numbers, raised by 128.
        tiles: [ceil(rows / 16), units, bytes of a unit] uint8.
        rows: number of rows of the matrix.
    """
    kind = TILE_FORMATS[name]
    stored = np.ascontiguousarray(tiles).view(kind.layout)[..., 0]
    header = {
        field: _by_row(stored[field], rows)
        for field in kind.layout.names or ()
        if field not in ("levels", "blocks")
    }
    if "n" in header:
        header["n"] = np.stack([header["n"] & 15, header["n"] >> 4], axis=-1).reshape(rows, -1)
        header["s"] = 2 * (header["n"] & (7 if name == "iq1_s" else 15)) + 1
    if name == "q2_k":
        header |= {"s": header["s"] & 15, "m": header["s"] >> 4}
    if "e" in header:
        powers = header["e"].astype(np.int32) - _EXPONENT_BIAS
        header["d"] = np.ldexp(np.float32(1), powers)
    if name == "nvfp4":
        header["s"] = float8(header["s"])
    numbers = {field: found.astype(np.float32) for field, found in header.items()}
    with np.errstate(over="ignore", invalid="ignore"):  # as in damaged files
        scales = _times(numbers["d"] / np.float32(kind.times), numbers.get("s"))
        minima: Floats | None = None
        if name == "iq1_s":
            minima = scales * np.where(header["n"] & 8, _SHIFT_OF_IQ1_S, -_SHIFT_OF_IQ1_S)
        elif "dmin" in numbers:
            minima = _times(numbers["dmin"], numbers["m"])
        elif "m" in numbers:
            minima = -numbers["m"]
    levels = _by_row(levels_in(stored, kind.planes), rows).view(np.uint8)
    zeros = np.full((1, 1), kind.zero, "u1")
    if kind.table:
        levels = (np.array(kind.table) + _RAISED).astype(np.uint8)[levels]
        return TileLevels(levels, 8, np.full((1, 1), _RAISED, np.uint8), scales, minima)
    return TileLevels(levels, kind.bits, header.get("z", zeros), scales, minima)


def floats_of_tiles(name: str, tiles: Bytes, rows: int) -> Floats:
    """Returns the rows of tiles of floats, [rows, K] float32; parameters as `levels_of_tiles`."""
    values = _by_row(np.ascontiguousarray(tiles).view(TILE_FORMATS[name].layout)["values"], rows)
    if name == "bf16":
        return np.left_shift(values, 16, dtype=np.uint32).view(np.float32)
    return values.astype(np.float32)


def tile_weights(name: str, tiles: Bytes, rows: int, columns: int) -> Floats:
    """Returns the weights of tiles, by the arithmetic in float32 of the `gguf` package.

    Args:
        name: name of the format.
        tiles: [ceil(rows / 16), ceil(columns / unit), bytes of a unit] uint8.
        rows: number of rows of the matrix.
        columns: number of its columns.

    Returns:
        [rows, columns] float32.
    """
    if TILE_FORMATS[name].unit == 1:
        return floats_of_tiles(name, tiles, rows)
    held = levels_of_tiles(name, tiles, rows)
    levels = held.levels.reshape(*held.scales.shape, -1)
    with np.errstate(over="ignore", invalid="ignore"):  # as in damaged files
        weights = held.scales[..., None] * (levels - held.zeros[..., None].astype(np.float32))
        if held.minima is not None:
            weights -= held.minima[..., None]
    return weights.reshape(rows, -1)[:, :columns]


def empty_tiles(kind: TileFormat, rows: int, columns: int) -> npt.NDArray[np.void]:
    """Returns tiles of a matrix to write fields into, [tiles, units] of the format's layout."""
    return np.empty(kind.shape(rows, columns)[:2], kind.layout)


def by_lane(rows: Array) -> Array:
    """A view of [N, ...] as [ceil(N / 16), ..., 16]; with a last tile that is short, a copy."""
    if missing := -len(rows) % LANES:
        rows = np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    return np.moveaxis(rows.reshape(-1, LANES, *rows.shape[1:]), 1, -1)


def bytes_of(stored: npt.NDArray[np.void], rows: int) -> Bytes:
    """The bytes of written tiles, in which all of the lanes behind the last row are set to 0."""
    if lanes := rows % LANES:
        clear_lanes(stored, lanes)
    return stored.view(np.uint8).reshape(*stored.shape, stored.dtype.itemsize)


def _by_row(lanes: Array, rows: int) -> Array:
    """Numbers [tiles, ..., 16] by row, [rows, ...] in one dimension: the way back of `by_lane`."""
    by_row = np.moveaxis(lanes, -1, 1).reshape(len(lanes) * LANES, -1)[:rows]
    return np.ascontiguousarray(by_row)


def _times(factors: Floats, numbers: Floats | None) -> Floats:
    """Multiplies the numbers of blocks [N, blocks] by their units' factors [N, units]."""
    if numbers is None:
        return factors
    return np.repeat(factors, numbers.shape[1] // factors.shape[1], axis=1) * numbers
