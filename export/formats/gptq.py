"""Rounds matrices to 4 bits so that later columns compensate the errors of earlier ones.

This is GPTQ (Frantar et al., 2023): rounding a column changes a layer's output. As far as the
inputs of later columns are correlated with its own, changing these columns before they are rounded
compensates for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from edgespec.export.formats.blocks import Floats, QuantizedRows, best_scales, pack_rows
from edgespec.export.formats.products import upper_moments

BITS = 4
"""Bits that matrices are rounded to. With 8 bits, plain rounding loses almost nothing."""

_LOW, _HIGH = -(2 ** (BITS - 1)), 2 ** (BITS - 1) - 1
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
        block_size: number of weights that share a scale.

    Attributes:
        importance: [K] float32, the damped mean square of each column, above 0.
    """

    def __init__(self, x: Floats, block_size: int) -> None:
        self.block_size = block_size
        square = np.square(x).mean(axis=0)
        self.importance: Floats = square + (_DAMPING * square.mean() or np.float32(1))
        step = _RUN // block_size * block_size
        self._runs = [slice(start, start + step) for start in range(0, x.shape[1], step)]
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
    first, last = _inverse(upper[:middle, :middle]), _inverse(upper[middle:, middle:])
    found[:middle, :middle], found[middle:, middle:] = first, last
    found[:middle, middle:] = -(first @ upper[:middle, middle:]) @ last
    return found


def quantize_with_feedback(weights: Floats, columns: Columns) -> QuantizedRows:
    """Quantizes an [N, K] matrix to 4 bits so that its products with such inputs change least.

    Each block's scales are those of `best_scales`, computed when the blocks before it are rounded.

    Args:
        weights: [N, K] float32, within the range of half precision.
        columns: statistics of the matrix's inputs.
    """
    parts = np.array_split(weights, _THREADS)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda part: _quantized(part, columns), parts))
    levels, scales = (np.concatenate(each) for each in zip(*found, strict=True))
    return pack_rows(weights, levels, scales, BITS)


def _quantized(weights: Floats, columns: Columns) -> tuple[Floats, Floats]:
    """Returns levels [N, blocks * block_size] and scales [N, blocks]."""
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
    """Rounds columns [k, N] into `levels`; returns the errors that later columns compensate."""
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
