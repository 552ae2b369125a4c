"""The likeliest tokens of rows of logits, fast at large vocabularies."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_LONGEST_BLOCK = 64  # tokens in one block of the block-maximum pass
_BLOCKS_EACH = 16  # blocks for every token wanted


def likeliest_tokens(
    logits: npt.NDArray[np.float32], vocab_size: int, count: int
) -> npt.NDArray[np.int64]:
    """The likeliest next tokens of every row, found with few calls and one pass over the logits.

    The maxima of disjoint blocks give each row a floor that `count` of its values reach. Only
    blocks that reach it are looked into.

    Args:
        logits: [n, V] float32; a NaN counts as minus infinity.
        vocab_size: At least `count`, at most V; ids from there on are padding.
        count: At least 1.

    Returns:
        [n, count] int64 ids, best first, equal ones by the lowest id.
    """
    length = max(1, min(vocab_size // (_BLOCKS_EACH * count), _LONGEST_BLOCK))
    blocks = vocab_size // length
    inside = blocks * length
    # Strided blocks, so that their maxima are vectorised passes over whole rows.
    blocked = logits[:, :inside].reshape(-1, length, blocks)
    maxima = blocked.max(axis=1)
    if np.isnan(maxima).any():  # a drafted row that no text comes by may be broken
        return likeliest_tokens(np.where(np.isnan(logits), -np.inf, logits), vocab_size, count)
    floor = np.partition(maxima, blocks - count, axis=1)[:, blocks - count, None]
    rows, block = np.nonzero(maxima >= floor)
    reaching = blocked[rows, :, block]
    pair, place = np.nonzero(reaching >= floor[rows])
    rows, ids = rows[pair], place * blocks + block[pair]
    if inside < vocab_size:
        rest, place = np.nonzero(logits[:, inside:vocab_size] >= floor)
        rows, ids = np.concatenate((rows, rest)), np.concatenate((ids, place + inside))
    order = np.lexsort((ids, -logits[rows, ids], rows))
    first = np.searchsorted(rows[order], np.arange(len(logits)))
    best: npt.NDArray[np.int64] = ids[order[first[:, None] + np.arange(count)]]
    return best
