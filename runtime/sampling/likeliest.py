"""Finds the likeliest tokens of rows of logits, fast for large vocabularies."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_LONGEST_BLOCK = 64  # tokens in one block of the block-maximum pass
_BLOCKS_EACH = 16  # number of blocks for each wanted token


def likeliest_tokens(
    logits: npt.NDArray[np.float32], vocab_size: int, count: int
) -> npt.NDArray[np.int64]:
    """Returns the likeliest next tokens of every row.

    It takes few calls and one pass over the logits. The maxima of disjoint blocks give each row a
    floor that at least `count` of its values reach. Only blocks that reach it are searched.

    Args:
        logits: [n, V] float32; a NaN counts as minus infinity.
        vocab_size: At least `count`, at most V; higher ids are padding.
        count: Number of tokens per row, at least 1.

    Returns:
        [n, count] int64 ids, best first, equal ones by the lowest id.
    """
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
    rows, ids = rows[pair], place * blocks + block[pair]
    if inside < vocab_size:
        rest, place = np.nonzero(logits[:, inside:vocab_size] >= floor)
        rows, ids = np.concatenate((rows, rest)), np.concatenate((ids, place + inside))
    order = np.lexsort((ids, -logits[rows, ids], rows))
    first = np.searchsorted(rows[order], np.arange(len(logits)))
    best: npt.NDArray[np.int64] = ids[order[first[:, None] + np.arange(count)]]
    return best
