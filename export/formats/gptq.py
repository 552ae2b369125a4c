"""Rounds matrices so that later columns compensate the errors of earlier ones.

This is GPTQ (Frantar et al., 2023): rounding a column changes a layer's output. As far as the
inputs of later columns are correlated with its own, changing these columns before they are rounded
compensates for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from edgespec.export.arrays import Floats
from edgespec.export.formats.products import upper_moments
from edgespec.export.formats.rounding import LevelGrid, RoundedRows, fitted, packed
from edgespec.export.formats.tile_formats import TILE_FORMATS, TileFormat

# Number of columns that compensate each other. The second moments of wider matrices would need too
# much memory, and little is lost.
_RUN = 2048
# Added to the diagonal, as a share of its mean, as if inputs had independent noise. 0.01 is usual,
# with a hundred times more text; with a few thousand tokens it would overfit to the text.
_DAMPING = 1.0
# Number of columns that are corrected one by one; later columns are corrected for all of them at
# once.
_STEP = 32
_THREADS = 2
_WHOLE = 128  # maximum rows of a triangular matrix that is inverted as a general one


class Columns:
    """Statistics of a matrix's inputs that rounding needs.

    Args:
        x: [rows, K] float32, the inputs.

    Attributes:
        importance: [K] float32, the damped mean square of each column, above 0.
    """

    def __init__(self, x: Floats) -> None:
        square = np.square(x).mean(axis=0)
        self.importance: Floats = square + (_DAMPING * square.mean() or np.float32(1))
        self._runs = [slice(start, start + _RUN) for start in range(0, x.shape[1], _RUN)]
        self._factors = [self._factor(x[:, run], self.importance[run]) for run in self._runs]

    def runs(self) -> Iterator[tuple[slice, Floats]]:
        """Returns slices of columns that compensate each other, with their [k, k] `_factor`."""
        return zip(self._runs, self._factors, strict=True)

    def _factor(self, x: Floats, diagonal: Floats) -> Floats:
        """Returns the upper triangular U with U' U = the inverse of the damped second moments.

        U is the inverse of R, where R R' are the moments. R is their Cholesky factor with rows and
        columns in reverse order, for which `cholesky` reads what was their upper triangle. Thanks
        to the damping, float32 is precise enough.
        """
        moments = upper_moments(x) / np.float32(len(x))
        np.fill_diagonal(moments, diagonal)
        lower = np.linalg.cholesky(moments[::-1, ::-1])
        return _inverse(np.ascontiguousarray(lower[::-1, ::-1]))


def _inverse(upper: Floats) -> Floats:
    """Inverts an upper triangular matrix [k, k] recursively, by products of its blocks."""
    if len(upper) <= _WHOLE:
        whole: Floats = np.linalg.inv(upper)
        return np.triu(whole)
    middle = len(upper) // 2
    found = np.zeros_like(upper)
    first = _inverse(upper[:middle, :middle])
    last = _inverse(upper[middle:, middle:])
    found[:middle, :middle], found[middle:, middle:] = first, last
    found[:middle, middle:] = -(first @ upper[:middle, middle:]) @ last
    return found


def rounded_with_feedback(form: str, weights: Floats, columns: Columns) -> RoundedRows:
    """Rounds a matrix so that its products with such inputs change least.

    The numbers that columns may have are those of `fitted`, once the columns before are rounded.

    Args:
        form: see `rounded`.
        weights: [N, K] float32, within the range of half precision.
        columns: statistics of the matrix's inputs.
    """
    kind = TILE_FORMATS[form]
    if rest := -weights.shape[1] % kind.unit:
        weights = np.pad(weights, ((0, 0), (0, rest)))
    parts = np.array_split(weights, _THREADS)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda part: _rounded(kind, part, columns), parts))
    levels = np.concatenate([each for each, _, _ in found], axis=1)
    grids = [each for _, each, _ in found]
    return packed(weights, levels, grids, sum(each for _, _, each in found))


def _rounded(
    kind: TileFormat, weights: Floats, columns: Columns
) -> tuple[npt.NDArray[np.int8], list[LevelGrid], float]:
    """Returns levels [K, N], the grids of all units, and the squared error."""
    levels = np.zeros(weights.T.shape, np.int8)
    grids = list[LevelGrid]()
    error = 0.0
    for run, factor in columns.runs():
        left = np.ascontiguousarray(weights[:, run].T)
        importance = np.pad(columns.importance[run], (0, len(left) - len(factor)))
        for start in range(0, len(left), kind.unit):
            unit = slice(start, start + kind.unit)
            grid = fitted(kind, left[unit], importance[unit])
            grids.append(grid)
            known = slice(start, min(unit.stop, len(factor)))
            found = np.zeros((kind.unit, len(weights)), np.float32)
            off = _round_unit(left[known], grid, factor[known, known], found)
            left[known.stop : len(factor)] -= factor[known, known.stop :].T @ off
            place = slice(run.start + start, run.start + unit.stop)
            levels[place] = found
            error += grid.error(found, np.ascontiguousarray(weights[:, place].T))
    return levels, grids, error


def _round_unit(left: Floats, grid: LevelGrid, factor: Floats, levels: Floats) -> Floats:
    """Rounds columns [k, N] into `levels`; returns the errors that later columns compensate."""
    errors = np.empty_like(left)
    size = grid.kind.unit // len(grid.scales)
    low = grid.lowest
    high = low + 2**grid.kind.bits - 1
    inverse = np.where(grid.scales == 0, 0, 1 / np.where(grid.scales == 0, 1, grid.scales))
    for start in range(0, len(left), _STEP):
        stop = min(start + _STEP, len(left))
        for column in range(start, stop):
            block = column // size
            shifted = left[column]
            if grid.minima is not None:
                shifted = shifted + grid.minima[block]
            level = np.clip(np.rint(shifted * inverse[block]), low, high)
            levels[column] = level
            errors[column] = (shifted - level * grid.scales[block]) / factor[column, column]
            behind = slice(column + 1, stop)
            left[behind] -= factor[column, behind, None] * errors[column]
        left[stop:] -= factor[start:stop, stop:].T @ errors[start:stop]
    return errors
