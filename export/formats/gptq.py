"""Four bits of a matrix, each column's rounding made up for by the columns that follow it.

GPTQ (Frantar et al., 2023): what rounding a column changes in a layer's results is, as far as
inputs of later columns go with its own, taken back by changing those before they are rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from edgespec.export.formats.blocks import Floats, QuantizedRows, best_scales, pack_rows

BITS = 4
"""Of what is rounded so: 8 lose next to nothing without it."""

_LOW, _HIGH = -(2 ** (BITS - 1)), 2 ** (BITS - 1) - 1
# Columns that make up for each other: of wider matrices the products of all inputs would fill the
# memory, and little is lost.
_RUN = 2048
# Added to the diagonal, as a share of its mean: as if inputs had so much noise of their own. A
# hundredth is usual with a hundred times the text; with a few thousand tokens that fits the text.
_DAMPING = 1.0
# Columns between which corrections go one by one; what follows gets those of all at once.
_STEP = 32
_THREADS = 2
_WHOLE = 128  # rows of a triangular matrix that is inverted as if it were any


class Columns:
    """What inputs of a matrix have in common, as rounding needs it.

    Args:
        x: [rows, K] float32, the inputs.
        block_size: weights that share a scale.

    Attributes:
        importance: [K] float32, the mean square of each column, above 0.
    """

    def __init__(self, x: Floats, block_size: int) -> None:
        self.block_size = block_size
        square = np.square(x).mean(axis=0)
        self.importance: Floats = square + (_DAMPING * square.mean() or np.float32(1))
        step = _RUN // block_size * block_size
        self._runs = [slice(start, start + step) for start in range(0, x.shape[1], step)]
        self._factors = [self._factor(x[:, run], self.importance[run]) for run in self._runs]

    def runs(self) -> Iterator[tuple[slice, Floats]]:
        """Columns that make up for each other, and how: [k, k], see `_factor`."""
        return zip(self._runs, self._factors, strict=True)

    def _factor(self, x: Floats, diagonal: Floats) -> Floats:
        """U, upper triangular, of the inverse of the damped second moments, U' U.

        It is the inverse of R where R R' are the moments; that is a Cholesky factor of them with
        rows and columns from the last to the first. Damped as they are, float32 is enough.
        """
        moments = x.T @ x / np.float32(len(x))
        np.fill_diagonal(moments, diagonal)
        lower = np.linalg.cholesky(moments[::-1, ::-1])
        return _inverse(np.ascontiguousarray(lower[::-1, ::-1]))


def _inverse(upper: Floats) -> Floats:
    """Of an upper triangular matrix, [k, k], by products of its parts."""
    if len(upper) <= _WHOLE:
        whole: Floats = np.linalg.inv(upper)
        return np.triu(whole)
    middle = len(upper) // 2
    found = np.zeros_like(upper)
    first, last = _inverse(upper[:middle, :middle]), _inverse(upper[middle:, middle:])
    found[:middle, :middle], found[middle:, middle:] = first, last
    found[:middle, middle:] = -(first @ upper[:middle, middle:]) @ last
    return found


def quantize_with_feedback(weights: Floats, columns: Columns) -> QuantizedRows:
    """Quantize a [N, K] matrix to 4 bits, so that its products with such inputs change least.

    Scales are those of `quantize_rows`, found for each block when those before it are rounded.

    Args:
        weights: float32, none beyond what half precision holds.
        columns: of its inputs.
    """
    parts = np.array_split(weights, _THREADS)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda part: _quantized(part, columns), parts))
    levels, scales = (np.concatenate(each) for each in zip(*found, strict=True))
    return pack_rows(weights, levels, scales, BITS)


def _quantized(weights: Floats, columns: Columns) -> tuple[Floats, Floats]:
    """Levels, [N, blocks * block_size], and scales, [N, blocks]."""
    size = columns.block_size
    rows, width = weights.shape
    blocks = -(-width // size)
    levels = np.zeros((blocks * size, rows), np.float32)
    scales = np.empty((blocks, rows), np.float32)
    for run, factor in columns.runs():
        left = np.ascontiguousarray(weights[:, run].T)
        importance = columns.importance[run]
        for start in range(0, len(left), size):
            block = slice(start, min(start + size, len(left)))
            place = run.start + start
            found = best_scales(np.ascontiguousarray(left[block].T), BITS, size, importance[block])[
                :, 0
            ]
            scales[place // size] = found
            errors = _round_block(left[block], found, factor[block, block], levels[place:])
            left[block.stop :] -= factor[block, block.stop :].T @ errors
    return np.ascontiguousarray(levels.T), np.ascontiguousarray(scales.T)


def _round_block(left: Floats, scales: Floats, factor: Floats, levels: Floats) -> Floats:
    """Round columns, [k, N]; their levels go to `levels`. Returns what is to be made up for."""
    steps = np.where(scales == 0, 1, scales)
    errors = np.empty_like(left)
    for start in range(0, len(left), _STEP):
        stop = min(start + _STEP, len(left))
        for column in range(start, stop):
            level = np.clip(np.rint(left[column] / steps), _LOW, _HIGH)
            level[scales == 0] = 0
            levels[column] = level
            errors[column] = (left[column] - level * scales) / factor[column, column]
            behind = slice(column + 1, stop)
            left[behind] -= factor[column, behind, None] * errors[column]
        left[stop:] -= factor[start:stop, stop:].T @ errors[start:stop]
    return errors
