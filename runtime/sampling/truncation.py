"""Finds which tokens survive top-k and top-p, exactly and fast for large vocabularies.

Every function takes one row of logits and returns ascending indices unless it says otherwise, so a
later arg-max resolves ties to the lowest id. The sets are those of transformers' processors. Where
the border of top-p cuts through equal logits, the lowest ids stay. No argument may hold a NaN.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from edgespec.runtime.arrays import Floats, Ids, Mask

_Float = TypeVar("_Float", np.float32, np.float64)

_LONGEST_BLOCK = 64  # tokens in one block of the block-maximum pass
_BLOCKS_EACH = 8  # number of blocks for each wanted index
_SOME = np.finfo(np.float64).tiny


def largest_indices(values: npt.NDArray[_Float], count: int) -> Ids:
    """Returns every index whose value is at least the `count`-th largest.

    The maxima of disjoint blocks give a floor below the `count`-th largest value (`count` blocks
    reach it, each with a value of its own), and few other values reach that floor.

    Args:
        values: [n] float32 or float64.
        count: At least 1.

    Returns:
        [count, or more on ties] int64 ascending; all indices if there are no more than `count`.
    """
    if count >= values.size:
        return np.arange(values.size)
    length = min(values.size // (_BLOCKS_EACH * count), _LONGEST_BLOCK)
    if length <= 2:
        kept, reached = None, values
    else:
        # Blocks are strided, so that their maxima are one vectorised pass over rows.
        blocks = values.size // length
        maxima = values[: blocks * length].reshape(length, blocks).max(axis=0)
        kept = np.flatnonzero(values >= np.partition(maxima, blocks - count)[blocks - count])
        reached = values[kept]
    border = np.partition(reached, reached.size - count)[reached.size - count]
    inside = np.flatnonzero(reached >= border)
    return inside if kept is None else kept[inside]


class Nucleus:
    """The smallest set of likeliest tokens that holds probability `top_p` (Holtzman et al., 2020).

    Args:
        logits: [n] float32.
        temperature: Positive.
        top_p: From 0, where the likeliest token is alone in it, to below 1.
    """

    def __init__(self, logits: Floats, temperature: float, top_p: float) -> None:
        self._logits = logits
        self._peak = logits.max()
        self._temperature = temperature
        weights = logits - self._peak
        if temperature != 1:
            weights *= 1 / temperature
        self._weights = np.exp(weights, out=weights)
        total = float(self._weights.sum())
        self._wanted = max(top_p * total, _SOME)  # the likeliest token is always inside
        self._spared = total - self._wanted

    def members(self, likeliest: Ids) -> Ids | None:
        """Returns the nucleus, or None if it reaches beyond the `likeliest` tokens.

        Args:
            likeliest: Indices of the largest logits, from `largest_indices`.

        Returns:
            [1 or more] int64 ascending, or None.
        """
        logits = self._logits
        if likeliest.size < min(self._wanted, logits.size):
            return None  # no weight is above 1, so these tokens cannot weigh enough
        descending = -np.sort(-logits[likeliest])
        mass = np.exp((descending - self._peak) / self._temperature).cumsum(dtype=np.float64)
        size = int(np.searchsorted(mass, self._wanted)) + 1
        if size > mass.size:
            if mass.size < logits.size:
                return None
            size = mass.size  # rounding left the whole vocabulary slightly below the wanted mass
        border = descending[size - 1]
        inside = np.flatnonzero(logits >= border)
        surplus = inside.size - size
        if surplus > 0:
            inside = np.delete(inside, np.flatnonzero(logits[inside] == border)[-surplus:])
        return inside

    def holds(self, index: int) -> bool:
        """Returns whether one token is in the nucleus, without computing the others.

        It is if the likelier tokens, with equal ones of lower index, have a probability below
        `top_p`.
        """
        if self._weights[index] > self._spared:
            return True  # all others together have a probability below `top_p`
        logits = self._logits
        # A product is several times faster than a masked sum.
        before = float(np.multiply(self._weights, logits > logits[index]).sum())
        equals = int(np.count_nonzero(logits[:index] == logits[index]))
        return before + equals * float(self._weights[index]) < self._wanted

    def before(self, index: int) -> Mask:
        """Returns which tokens are likelier than one, or as likely with a lower index, [n] bool."""
        logits = self._logits
        before: Mask = logits > logits[index]
        before[:index] |= logits[:index] == logits[index]
        return before


_LONGEST_BLOCK = 64  # tokens in one block of the block-maximum pass
_BLOCKS_EACH = 16  # number of blocks for each wanted token
_FEW = 1 << 18  # logits that the arg-max of one token after the other may look at


def likeliest_tokens(logits: Floats, vocab_size: int, count: int) -> Ids:
    """Returns the likeliest next tokens of every row.

    A few tokens of small rows are found one after the other, by their arg-max. Otherwise it takes
    few calls and one pass over the logits. The maxima of disjoint blocks give each row a
    floor that at least `count` of its values reach. Only blocks that reach it are searched.

    Args:
        logits: [n, V] float32; a NaN counts as minus infinity.
        vocab_size: At least `count`, at most V; higher ids are padding.
        count: Number of tokens per row, at least 1.

    Returns:
        [n, count] int64 ids, best first, equal ones by the lowest id.
    """
    if len(logits) * count * vocab_size <= _FEW:
        few = _one_by_one(logits[:, :vocab_size].copy(), count)
        if few is not None:
            return few
    length = max(1, min(vocab_size // (_BLOCKS_EACH * count), _LONGEST_BLOCK))
    blocks = vocab_size // length
    inside = blocks * length
    # Blocks are strided, so that their maxima are vectorised passes over whole rows.
    blocked = logits[:, :inside].reshape(-1, length, blocks)
    maxima = blocked.max(axis=1)
    if np.isnan(maxima).any():  # rows of drafts that the text does not reach may hold a NaN
        return likeliest_tokens(np.where(np.isnan(logits), -np.inf, logits), vocab_size, count)
    floor = np.partition(maxima, blocks - count, axis=1)[:, blocks - count, None]
    rows, block = np.nonzero(maxima >= floor)
    reaching = blocked[rows, :, block]
    pair, place = np.nonzero(reaching >= floor[rows])
    rows = rows[pair]
    ids = place * blocks + block[pair]
    if inside < vocab_size:
        rest, place = np.nonzero(logits[:, inside:vocab_size] >= floor)
        rows = np.concatenate((rows, rest))
        ids = np.concatenate((ids, place + inside))
    order = np.lexsort((ids, -logits[rows, ids], rows))
    first = np.searchsorted(rows[order], np.arange(len(logits)))
    best: Ids = ids[order[first[:, None] + np.arange(count)]]
    return best


def _one_by_one(left: Floats, count: int) -> Ids | None:
    """Returns the likeliest tokens of rows, which it changes; None if not so many are finite."""
    best = []
    for row in left:
        for _ in range(count):
            best.append(token := int(row.argmax()))
            if not row[token] > -np.inf:  # nor is a NaN
                return None
            row[token] = -np.inf
    return np.array(best, np.int64).reshape(-1, count)
