"""Rounds weights to the numbers of a format: scales and minima of least (weighted) squared error.

Columns are the first axis here, so that numpy's inner loops run over rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgespec.export.arrays import Array, Bytes, Floats
from edgespec.export.formats.tile_formats import TILE_FORMATS, TileFormat
from edgespec.export.formats.tiles import tiles_of_fields

SUPER = 256
"""Number of columns that are fitted at once; rows of `q4_k` and `q6_k` have a multiple of it."""

# Scales to try, as shares of the one at which a block's largest weight has the last level of its
# sign, or of the one at which all levels lie between its smallest and largest weight. Beyond 1 the
# largest weights are clipped, and the others get finer steps.
_SYMMETRIC = {4: (0.88, 0.94, 1.0, 1.06, 1.17), 5: (0.95, 1.0, 1.05), 6: (0.98, 1.01), 8: (0.992,)}
_ASYMMETRIC = {4: (0.89, 0.93, 0.97, 1.01, 1.06)}
_MOST_MINIMUM = 63  # of q4_k's scales and minima
_TINY = np.float32(1e-30)
# Blocks without a larger weight become zeros: their inverse scales would overflow float32.
_NOTHING = np.float32(1e-18)
# Smaller scales have fewer than 7 bits in half precision, where they are subnormal. Those of blocks
# of super-blocks are multiples of smaller ones, of which they need fewer bits.
_FAINT = 2.0**-18
_FAINT_SUPER = 2.0**-22
_LARGEST = float(np.finfo(np.float16).max)
_ROWS = 256  # that are fitted at once, so that they stay in a core's L2 cache


@dataclass(frozen=True)
class RoundedRows:
    """Rows of a matrix in a format.

    Attributes:
        format: name of the format of tiles.
        tiles: [ceil(rows / 16), units, bytes of a unit] uint8.
        squared_error: sum of squared differences to the original.
        squared_norm: sum of squares of the original.
        faint_norm: part of `squared_norm` whose scales are too small for half precision.
    """

    format: str
    tiles: Bytes
    squared_error: float
    squared_norm: float
    faint_norm: float


@dataclass(frozen=True)
class LevelGrid:
    """The numbers that some columns of a format may have: scale * level - minimum.

    Attributes:
        kind: the format.
        fields: what the format stores of them, [numbers, rows] by the name of its tiles' field.
        scales: [blocks, rows] float32.
        minima: [blocks, rows] float32; None: all are 0.
    """

    kind: TileFormat
    fields: Mapping[str, Array]
    scales: Floats
    minima: Floats | None

    @property
    def lowest(self) -> int:
        """The lowest level; the highest is 2 ** bits - 1 above."""
        return -self.kind.zero

    def error(self, levels: Floats, x: Floats) -> float:
        """Returns the sum of the squared differences of what levels stand for to x."""
        off = levels.reshape(len(self.scales), -1, x.shape[1]) * self.scales[:, None]
        if self.minima is not None:
            off -= self.minima[:, None]
        off -= x.reshape(off.shape)
        return float(np.vdot(off, off))

    def levels(self, x: Floats) -> Floats:
        """Returns the levels next to weights [columns, rows]."""
        by_block = x.reshape(len(self.scales), -1, x.shape[1])
        steps = np.where(self.scales == 0, np.float32(np.inf), self.scales)[:, None]
        found: Floats = by_block if self.minima is None else by_block + self.minima[:, None]
        found = np.divide(found, steps, dtype=np.float32)
        np.rint(found, out=found)
        np.clip(found, self.lowest, self.lowest + 2**self.kind.bits - 1, out=found)
        return found.reshape(x.shape)


def rounded(form: str, weights: Floats, importance: Floats | None = None) -> RoundedRows:
    """Rounds rows to the nearest numbers of a format, with the best scales of each block.

    Several scales are tried for each block. For each, weights are rounded to integers q, scale and
    minimum are the least-squares ones of these, and those with the least error are used.

    Args:
        form: `q4_0`, `q5_0`, `q8_0`, `q4_k` or `q6_k`.
        weights: [rows, K] float32, within the range of half precision.
        importance: [K] float32, positive weights of the squared errors of columns, such as the mean
            squares of what they are multiplied by; None: all alike.
    """
    kind, (rows, width) = TILE_FORMATS[form], weights.shape
    rest = -width % kind.unit
    if rest:
        weights = np.pad(weights, ((0, 0), (0, rest)))
        importance = None if importance is None else np.pad(importance, (0, rest))
    levels = np.empty(weights.T.shape, np.int8)
    grids = list[list[LevelGrid]]()
    error = 0.0
    for start in range(0, rows, _ROWS):
        part = weights[start : start + _ROWS]
        grids.append([])
        for left in range(0, part.shape[1], SUPER):
            columns = slice(left, left + SUPER)
            x = np.ascontiguousarray(part[:, columns].T)
            grid = fitted(kind, x, None if importance is None else importance[columns])
            nearest = grid.levels(x)
            error += grid.error(nearest, x)
            levels[columns, start : start + _ROWS] = nearest
            grids[-1].append(grid)
    return packed(weights, levels, grids, error)


def packed(
    weights: Floats,
    levels: npt.NDArray[np.int8],
    grids: Sequence[Sequence[LevelGrid]],
    error: float,
) -> RoundedRows:
    """Stores levels as tiles.

    Args:
        weights: [rows, K] float32, the original, K a multiple of the format's unit.
        levels: [K, rows], see `LevelGrid.levels`.
        grids: the grids of all columns, for some rows after the other.
        error: sum of squared differences to the original.
    """
    kind = grids[0][0].kind
    fields = {
        name: np.concatenate(
            [np.concatenate([grid.fields[name] for grid in part]) for part in grids], axis=1
        ).T
        for name in grids[0][0].fields
    }
    stored = np.ascontiguousarray(levels.T).view(np.uint8)
    stored += np.uint8(kind.zero)
    squares = np.square(weights).reshape(len(weights), fields["d"].shape[1], -1).sum(axis=2)
    faint = np.abs(fields["d"]) < (_FAINT_SUPER if kind.unit == SUPER else _FAINT)
    return RoundedRows(
        kind.name,
        tiles_of_fields(kind, stored, fields),
        error,
        float(squares.sum(dtype=np.float64)),
        float(squares[faint].sum(dtype=np.float64)),
    )


def fitted(kind: TileFormat, x: Floats, importance: Floats | None) -> LevelGrid:
    """Returns the best numbers of some columns.

    Args:
        kind: the format.
        x: [columns, rows] float32, whole units.
        importance: [columns], see `rounded`.
    """
    size = 16 if kind.name == "q6_k" else 32
    by_block = x.reshape(-1, size, x.shape[1])
    weights = None if importance is None else importance.reshape(-1, size, 1)
    if kind.name == "q4_k":
        return _with_minima(kind, by_block, weights)
    scales = _scales(by_block, weights, kind.bits)
    if kind.unit == SUPER:
        # The largest scale has the negative end, which has one number more.
        extreme: Floats = np.take_along_axis(scales, np.abs(scales).argmax(axis=0)[None], axis=0)
        steps = _half(np.divide(extreme, -128, dtype=np.float32))
        numbers = np.rint(_divided(scales, steps)).clip(-128, 127)
        return LevelGrid(
            kind,
            {"d": steps.astype(np.float16), "s": numbers.astype(np.int8)},
            steps * numbers,
            None,
        )
    scales = _half(scales)
    return LevelGrid(kind, {"d": scales.astype(np.float16)}, scales, None)


def _scales(x: Floats, weights: Floats | None, bits: int) -> Floats:
    """Returns the best scale of each block, [blocks, rows]."""
    low = -(2 ** (bits - 1))
    top = x.max(axis=1)
    bottom = x.min(axis=1)
    extreme = np.where(top > -bottom, top, bottom)
    extreme[np.abs(extreme) < _NOTHING] = 1
    best = np.full_like(extreme, -1)
    scales = np.zeros_like(extreme)
    levels = np.empty_like(x)
    weighted = np.empty_like(x)
    for share in _SYMMETRIC[bits]:
        # The largest weight has the negative end, which has one level more.
        np.multiply(x, np.float32(share * low) / extreme[:, None], out=levels)
        np.rint(levels, out=levels)
        np.clip(levels, low, -low - 1, out=levels)
        if weights is None:
            weighted = levels
        else:
            np.multiply(levels, weights, out=weighted)
        cross = np.einsum("bkn,bkn->bn", x, weighted)
        square = np.einsum("bkn,bkn->bn", levels, weighted)
        found = cross / np.maximum(square, _TINY)
        gains = found * cross
        better = gains > best
        np.copyto(best, gains, where=better)
        np.copyto(scales, found, where=better)
    clipped: Floats = scales.clip(_LARGEST / low, -_LARGEST / low)
    return clipped


def _with_minima(kind: TileFormat, x: Floats, weights: Floats | None) -> LevelGrid:
    """Returns the best scales and minima of a super-block's blocks x [8, 32, rows]."""
    sums = _Sums(x, weights)
    scales, minima = sums.best(kind.bits)
    steps = _half(scales.max(axis=0) / 63)
    shifts = _half(minima.max(axis=0) / 63)
    numbers = _numbers(scales, steps)
    offsets = _numbers(minima, shifts)
    # Rounded scales and minima have other levels, of which one step more is the best.
    grid = LevelGrid(kind, {}, steps * numbers, shifts * offsets)
    level, square, cross = sums.of(grid.levels(x.reshape(-1, x.shape[2])).reshape(x.shape))
    steps, shifts = sums.solved(
        (numbers * numbers * square).sum(axis=0),
        (numbers * offsets * level).sum(axis=0),
        (offsets * offsets * sums.weight).sum(axis=0),
        (numbers * cross).sum(axis=0),
        (offsets * sums.x).sum(axis=0),
        (steps, shifts),
    )
    steps = _half(steps)
    shifts = _half(shifts)
    fields: dict[str, Array] = {
        "d": steps[None].astype(np.float16),
        "dmin": shifts[None].astype(np.float16),
        "s": numbers.astype(np.uint8),
        "m": offsets.astype(np.uint8),
    }
    return LevelGrid(kind, fields, steps * numbers, shifts * offsets)


class _Sums:
    """Sums over the columns of blocks, of which scales and minima of least squares are made.

    Args:
        x: [blocks, k, rows] float32, the weights.
        weights: [blocks, k, 1], of squared errors; None: all 1.
    """

    def __init__(self, x: Floats, weights: Floats | None) -> None:
        self._x = x
        self._weights = weights
        self.weight = np.float32(x.shape[1]) if weights is None else weights.sum(axis=1)
        self.x = x.sum(axis=1) if weights is None else np.einsum("bkn,bk->bn", x, weights[..., 0])
        self._weighted = np.empty_like(x)

    def of(self, levels: Floats) -> tuple[Floats, Floats, Floats]:
        """Returns the sums of levels, their squares, and their products with the weights."""
        weighted = levels
        if self._weights is not None:
            weighted = np.multiply(levels, self._weights, out=self._weighted)
        square = np.einsum("bkn,bkn->bn", levels, weighted)
        return weighted.sum(axis=1), square, np.einsum("bkn,bkn->bn", self._x, weighted)

    def best(self, bits: int) -> tuple[Floats, Floats]:
        """Returns the best scales, and minima of at least 0, [blocks, rows]."""
        x = self._x
        most = 2**bits - 1
        low = np.minimum(x.min(axis=1), 0)
        span = np.maximum(x.max(axis=1), 0) - low
        scales = span / most
        minima = -low
        best = np.full_like(span, -np.inf)
        above = x - low[:, None]
        levels = np.empty_like(x)
        factor = np.float32(most) / np.maximum(span, _NOTHING)
        for share in _ASYMMETRIC[bits]:
            np.multiply(above, (np.float32(share) * factor)[:, None], out=levels)
            np.rint(levels, out=levels)
            if share > 1:
                np.minimum(levels, most, out=levels)
            level, square, cross = self.of(levels)
            scale, minimum = self.solved(square, level, self.weight, cross, self.x, None)
            gains = 2 * (scale * cross - minimum * self.x + scale * minimum * level)
            gains -= scale * scale * square + minimum * minimum * self.weight
            better = gains > best
            np.copyto(best, gains, where=better)
            np.copyto(scales, scale, where=better)
            np.copyto(minima, minimum, where=better)
        return scales, minima

    @staticmethod
    def solved(
        square: Floats,
        level: Floats,
        weight: Floats | np.float32,
        cross: Floats,
        x: Floats,
        usual: tuple[Floats, Floats] | None,
    ) -> tuple[Floats, Floats]:
        """Returns scale and minimum of x = scale * level - minimum with the least squared error.

        Where the minimum would be below 0, or there is no one solution, one of them alone is
        solved for, or they are as usual.
        """
        both = square * weight - level * level
        some = both > 1e-6 * square * weight
        inverse = 1 / np.where(some, both, 1)
        scale = np.multiply(weight * cross - level * x, inverse, dtype=np.float32)
        minimum = np.multiply(level * cross - square * x, inverse, dtype=np.float32)
        alone = ~some | (minimum < 0) | (scale <= 0)
        if usual is None:
            shift = np.where(level == 0, np.maximum(-x / weight, 0), np.float32(0))
            usual = np.maximum(cross / np.maximum(square, _TINY), 0), shift
        np.copyto(scale, usual[0], where=alone)
        np.copyto(minimum, usual[1], where=alone)
        return scale, minimum


def _numbers(values: Floats, steps: Floats) -> Floats:
    found: Floats = np.rint(_divided(values, steps)).clip(0, _MOST_MINIMUM)
    return found


def _divided(values: Floats, steps: Floats) -> Floats:
    steps = np.where(steps == 0, np.float32(np.inf), steps)
    found: Floats = values / steps
    return found


def _half(values: Floats) -> Floats:
    return values.astype(np.float16).astype(np.float32)
