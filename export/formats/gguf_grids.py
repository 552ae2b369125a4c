"""Encodings of GGUF files that number the points of a grid, or pack signs or digits: their levels.

A point is the levels of four or eight neighbouring columns. The grids, and how files order bits,
are those of the `gguf` package, `quants.py` (ggml-org).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import quants

from edgespec.export.arrays import Array, Bytes, Floats
from edgespec.export.formats.tile_formats import TILE_FORMATS

_Stored = npt.NDArray[np.void]
_Words = npt.NDArray[np.uint64]

_D = ("d", "<f2")
_DIGITS = 5  # of base 3 in a byte


@dataclass(frozen=True)
class GridRows:
    """Some rows of a file as levels of tiles.

    Attributes:
        levels: [N, K] uint8.
        scales: [N, units] float16 of a unit.
        numbers: [N, units, parts] less than 16, by which scales of its parts are told; None: a
            unit has one scale.
    """

    levels: Bytes
    scales: Array
    numbers: Array | None

    @property
    def fields(self) -> dict[str, Array]:
        """What tiles hold beside the levels."""
        if self.numbers is None:
            return {"d": self.scales}
        pairs = self.numbers.astype(np.uint8)
        return {"d": self.scales, "n": pairs[..., ::2] | pairs[..., 1::2] << 4}


@dataclass(frozen=True)
class GridEncoding:
    """How a file stores blocks of 256 weights, or of 128 (Q1_0).

    Attributes:
        form: name of the tiles' format.
        block: a block, field by field.
        read: takes blocks [N, units] apart.
    """

    form: str
    block: np.dtype[np.void]
    read: Callable[[_Stored], GridRows]


def _q1_0(blocks: _Stored) -> GridRows:
    levels = np.unpackbits(blocks["low"], axis=-1, bitorder="little")
    return GridRows(levels.reshape(len(blocks), -1), blocks["d"], None)


def _tq1_0(blocks: _Stored) -> GridRows:
    rows, units = blocks.shape
    parts = (blocks["low"][..., :32], blocks["low"][..., 32:], blocks["high"])
    digits = [np.moveaxis(_ternary()[part], -1, -2).reshape(rows, units, -1) for part in parts]
    levels = np.concatenate(digits, axis=-1)[..., :256]
    return GridRows(levels.reshape(rows, -1), blocks["d"], None)


def _iq1_s(blocks: _Stored) -> GridRows:
    words = blocks["high"]
    levels = _iq1_points()[blocks["low"] | _bits(words, (0, 3, 6, 9), 7) << 8]
    return _grid_rows(blocks["d"], words >> 12, levels)  # shifted down: with the highest bit


def _iq1_m(blocks: _Stored) -> GridRows:
    words = blocks["s"]
    bits = np.bitwise_or.reduce(words >> 12 << np.array([0, 4, 8, 12], np.uint16), axis=-1)
    high = _bits(blocks["high"], (0, 4), 15).astype(np.uint16)
    levels = _iq1_points()[blocks["low"] | high << 8]
    return _grid_rows(bits.view(np.float16), _bits(words, (0, 3, 6, 9), 7), levels)


def _iq2_xxs(blocks: _Stored) -> GridRows:
    numbers = np.ascontiguousarray(blocks["words"][..., 0]).view(np.uint8)
    words = blocks["words"][..., 1]
    levels = _points(quants.IQ2_XXS, "iq2_xxs")[numbers] ^ _signs("iq2_xxs")[_short_signs(words)]
    return _grid_rows(blocks["d"], words >> 28, levels)


def _iq2_xs(blocks: _Stored) -> GridRows:
    words = blocks["words"]
    signs = _even_signs()[words >> 9]
    levels = _points(quants.IQ2_XS, "iq2_s")[words & 511] ^ _signs("iq2_s")[signs]
    return _grid_rows(blocks["d"], _bits(blocks["s"], (0, 4), 15), levels)


def _iq2_s(blocks: _Stored) -> GridRows:
    high = _bits(blocks["high"], (0, 2, 4, 6), 3).astype(np.uint16)
    points = _points(quants.IQ2_S, "iq2_s")[blocks["low"] | high << 8]
    levels = points ^ _signs("iq2_s")[blocks["signs"]]
    return _grid_rows(blocks["d"], _bits(blocks["s"], (0, 4), 15), levels)


def _iq3_xxs(blocks: _Stored) -> GridRows:
    words = blocks["words"]
    points = _points(quants.IQ3_XXS, "iq3_xxs", halved=True)[blocks["low"]].view(np.uint64)
    levels = points ^ _signs("iq3_xxs")[_short_signs(words)]
    return _grid_rows(blocks["d"], words >> 28, levels)


def _iq3_s(blocks: _Stored) -> GridRows:
    high = _bits(blocks["high"], range(8), 1).astype(np.uint16)
    points = _points(quants.IQ3_S, "iq3_s")[blocks["low"] | high << 8].view(np.uint64)
    levels = points ^ _signs("iq3_s")[blocks["signs"]]
    return _grid_rows(blocks["d"], _bits(blocks["s"], (0, 4), 15), levels)


def _grid_rows(scales: Array, numbers: Array, levels: _Words) -> GridRows:
    return GridRows(levels.view(np.uint8).reshape(len(levels), -1), scales, numbers)


def _bits(words: Array, shifts: Any, mask: int) -> Array:
    """The numbers within words [N, units, n], from the lowest bits up: [N, units, n * shifts]."""
    found: Array = words[..., None] >> np.array(shifts, words.dtype) & words.dtype.type(mask)
    return found.reshape(*words.shape[:2], -1)


def _short_signs(words: Array) -> Bytes:
    """The four bytes of signs whose seven lower bits a word has."""
    return _even_signs()[_bits(words, (0, 7, 14, 21), 127)]


@cache
def _even_signs() -> Bytes:
    """Bytes of signs by their seven lower bits: an even number of signs is set."""
    return np.frombuffer(quants.IQ2_XXS.ksigns, np.uint8)


@cache
def _signs(form: str) -> _Words:
    """By a byte of signs, what turns levels of eight columns into those of the negative values."""
    turned = np.uint8((1 << TILE_FORMATS[form].bits) - 1)  # tables are symmetric
    set_bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.ascontiguousarray(set_bits * turned).view(np.uint64)[:, 0]


@cache
def _points(kind: Any, form: str, halved: bool = False) -> Array:
    """The levels of a grid's points, as a word each."""
    values = _grid(kind) / (2 if halved else 1)
    return _as_words(values, form)


@cache
def _iq1_points() -> Array:
    """The same of IQ1: levels 0 to 2; behind all points, with the bit of those shifted down."""
    levels = (_grid(quants.IQ1_S) + 1).astype(np.uint8)
    return np.concatenate([levels, levels | 4]).view(np.uint64)[:, 0]


def _grid(kind: Any) -> Floats:
    kind.init_grid()
    grid: Floats = kind.grid
    return grid.reshape(-1, grid.shape[-1])


def _as_words(values: Array, form: str) -> Array:
    levels = np.searchsorted(TILE_FORMATS[form].table, values).astype(np.uint8)
    return levels.view(f"<u{levels.shape[1]}")[:, 0]


@cache
def _ternary() -> Bytes:
    """The digits of bytes, [256, 5]: a byte is a fraction of 256, the first digit its highest."""
    powers = 3 ** np.arange(_DIGITS)
    fractions = np.arange(256)[:, None] * powers & 255
    return (fractions * 3 >> 8).astype(np.uint8)


GRIDS: Mapping[str, GridEncoding] = {
    "q1_0": GridEncoding("q1_0", np.dtype([_D, ("low", "u1", 16)]), _q1_0),
    "tq1_0": GridEncoding("tq2_0", np.dtype([("low", "u1", 48), ("high", "u1", 4), _D]), _tq1_0),
    "iq1_s": GridEncoding("iq1_s", np.dtype([_D, ("low", "u1", 32), ("high", "<u2", 8)]), _iq1_s),
    "iq1_m": GridEncoding(
        "iq1_m", np.dtype([("low", "u1", 32), ("high", "u1", 16), ("s", "<u2", 4)]), _iq1_m
    ),
    "iq2_xxs": GridEncoding("iq2_xxs", np.dtype([_D, ("words", "<u4", (8, 2))]), _iq2_xxs),
    "iq2_xs": GridEncoding("iq2_s", np.dtype([_D, ("words", "<u2", 32), ("s", "u1", 8)]), _iq2_xs),
    "iq2_s": GridEncoding(
        "iq2_s",
        np.dtype([_D, ("low", "u1", 32), ("signs", "u1", 32), ("high", "u1", 8), ("s", "u1", 8)]),
        _iq2_s,
    ),
    "iq3_xxs": GridEncoding(
        "iq3_xxs", np.dtype([_D, ("low", "u1", 64), ("words", "<u4", 8)]), _iq3_xxs
    ),
    "iq3_s": GridEncoding(
        "iq3_s",
        np.dtype([_D, ("low", "u1", 64), ("high", "u1", 8), ("signs", "u1", 32), ("s", "u1", 4)]),
        _iq3_s,
    ),
}
"""By the name of the encoding in lower case."""
