"""How tiles of 16 rows hold weights, in the layouts that the native kernels read.

A tile holds 16 rows of a matrix [N, K], its lanes, some columns at a time. Such a unit has first
what belongs to its rows, scales and the like, each number for all lanes; then the levels in planes
of bits. Four neighbouring columns of a lane, a quad, are four neighbouring bytes of a plane.
`TileFormat.layout` is a unit as numpy sees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

LANES = 16
BLOCK = 32
"""Number of columns whose planes lie together."""

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # doubled
_GRID_1 = (-7, 1, 9, 9, -9, -1, 7, 7)  # times eight; shifted up, and down
_GRID_2 = (-43, -43, -25, -8, 8, 25, 43, 43)
_GRID_3_XXS = (-31, -26, -22, -18, -14, -10, -6, -2, 2, 6, 10, 14, 18, 22, 26, 31)  # halved
_GRID_3 = tuple(range(-15, 16, 2))
_PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}


@dataclass(frozen=True)
class TileFormat:
    """How tiles hold weights.

    Attributes:
        name: its name in bundles.
        unit: number of columns of a unit.
        layout: a unit: `values` [16] of floats; or scales, minima and zero points, each [16] or
            [blocks, 16], and then `levels` [blocks of 32, bits, 16] uint32. `n` has two blocks'
            numbers in a byte. `blocks` are levels of which each has `shifts` behind it, a bit for
            each lane of 8 columns.
        bits: bits of a weight.
        zero: the level of a weight of 0, where it is the same everywhere.
        table: the numbers that levels stand for, where these are not the levels themselves.
        times: by what these numbers were multiplied, and scales are divided.
    """

    name: str
    unit: int
    layout: np.dtype[np.void]
    bits: int
    zero: int = 0
    table: tuple[int, ...] = ()
    times: int = 1

    @property
    def unit_bytes(self) -> int:
        """Bytes of a unit of 16 rows."""
        return self.layout.itemsize

    @property
    def weight_bits(self) -> float:
        """Bits of a weight with its share of all scales."""
        return 8 * self.unit_bytes / (LANES * self.unit)

    @property
    def planes(self) -> tuple[int, ...]:
        """Bits of each plane of a block, the lowest bits of the levels first."""
        return _PLANES[self.bits]

    @property
    def scaled(self) -> int:
        """Number of columns with a scale of their own."""
        fields = self.layout.names or ()
        if "n" in fields:
            return self.unit // (2 * int(self.layout["n"].shape[0]))
        return self.unit // int(self.layout["s"].shape[0]) if "s" in fields else self.unit

    @property
    def offset(self) -> bool:
        """Whether something is added to the products of levels and scales."""
        return self.name == "iq1_s" or bool({"m", "dmin"} & set(self.layout.names or ()))

    def shape(self, rows: int, columns: int) -> tuple[int, int, int]:
        """Returns the shape of the tiles of a matrix: [tiles, units, bytes of a unit]."""
        return -(-rows // LANES), -(-columns // self.unit), self.unit_bytes


def _floats(name: str, dtype: str) -> TileFormat:
    layout = np.dtype([("values", dtype, LANES)])
    return TileFormat(name, 1, layout, 8 * layout.itemsize // LANES)


def _levels(
    name: str, unit: int, bits: int, *header: Any, zero: int = 0, table: tuple[int, ...] = ()
) -> TileFormat:
    levels = ("levels", "<u4", (unit // BLOCK, bits, LANES))
    return TileFormat(name, unit, np.dtype([*header, levels]), bits, zero, table)


def _grid(name: str, bits: int, size: int, table: tuple[int, ...], times: int) -> TileFormat:
    """Units of 256 whose scales, each of some columns, are odd multiples of one."""
    header = _SCALE, ("n", "u1", (128 // size, LANES))
    plain = _levels(name, 256, bits, *header, table=table)
    if name != "iq1_m":
        return replace(plain, times=times)
    block = [("levels", "<u4", (bits, LANES)), ("shifts", "<u2", 4)]
    return replace(plain, layout=np.dtype([*header, ("blocks", block, 8)]), times=times)


_SCALE = ("d", "<f2", LANES)
_SHIFT = ("m", "<f2", LANES)
_ZEROS = ("z", "u1", LANES)
_BOTH = (_SCALE, ("dmin", "<f2", LANES))
_OF_32 = (("s", "u1", (8, LANES)), ("m", "u1", (8, LANES)))
_OF_16 = ("s", "i1", (16, LANES))

TILE_FORMATS: Mapping[str, TileFormat] = {
    each.name: each
    for each in (
        _floats("f32", "<f4"),
        _floats("f16", "<f2"),
        _floats("bf16", "<u2"),
        _levels("q4_0", 32, 4, _SCALE, zero=8),
        _levels("q4_1", 32, 4, _SCALE, _SHIFT),
        _levels("q4_z", 32, 4, _SCALE, _ZEROS),
        _levels("q5_0", 32, 5, _SCALE, zero=16),
        _levels("q5_1", 32, 5, _SCALE, _SHIFT),
        _levels("q8_0", 32, 8, _SCALE, zero=128),
        _levels("q8_z", 32, 8, _SCALE, _ZEROS),
        _levels("iq4_nl", 32, 4, _SCALE, table=_IQ4),
        _levels("mxfp4", 32, 4, ("e", "u1", LANES), table=_FP4),
        _levels("q2_k", 256, 2, *_BOTH, ("s", "u1", (16, LANES))),  # scale, and minimum << 4
        _levels("q3_k", 256, 3, _SCALE, _OF_16, zero=4),
        _levels("q4_k", 256, 4, *_BOTH, *_OF_32),
        _levels("q5_k", 256, 5, *_BOTH, *_OF_32),
        _levels("q6_k", 256, 6, _SCALE, _OF_16, zero=32),
        _levels("iq4_xs", 256, 4, _SCALE, ("s", "i1", (8, LANES)), table=_IQ4),
        _levels("q1_0", 128, 1, _SCALE, table=(-1, 1)),
        _levels("tq2_0", 256, 2, _SCALE, zero=1),
        _levels("iq1_s", 256, 2, _SCALE, ("n", "u1", (4, LANES)), zero=1),  # and a sign << 3
        _grid("iq1_m", 2, 16, _GRID_1, 8),
        _grid("iq2_xxs", 3, 32, _GRID_2, 8),
        _grid("iq2_s", 3, 16, _GRID_2, 8),
        _grid("iq3_xxs", 4, 32, _GRID_3_XXS, 2),
        _grid("iq3_s", 4, 32, _GRID_3, 1),
        _levels("nvfp4", 64, 4, ("d", "<f4", LANES), ("s", "u1", (4, LANES)), table=_FP4),
    )
}
"""All formats by name. Those that an encoding of GGUF files has the numbers of have its name."""
