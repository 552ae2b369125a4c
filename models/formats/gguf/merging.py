"""Which tokens of a vocabulary two others make, found for all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    Integers = np.ndarray[Any, np.dtype[np.integer[Any]]]

# A part of a text is hashed as a polynomial of its letters modulo 2^64 (Karp and Rabin, 1987). Two
# of a million parts are the same by chance in one vocabulary of ten million.
_BASE = 0x9E3779B97F4A7C15
_TABLE_BITS = 22  # of a hash: most parts are no tokens, which a table of these bits tells


def pairs(texts: Sequence[str]) -> tuple[Integers, Integers, Integers]:
    """Finds all pairs of texts that make another one.

    Args:
        texts: Different texts, none of them empty.

    Returns:
        The numbers of a text, of its first part and of its second, of each pair.
    """
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    ends = np.cumsum(lengths)
    begins = ends - lengths
    hashes = _Hashes("".join(texts))
    known = _Known(hashes.of(begins, ends))
    cuts = lengths - 1  # of each text
    whole = np.repeat(np.arange(len(texts)), cuts)
    cut = np.arange(len(whole)) - (np.cumsum(cuts) - cuts - begins - 1)[whole]
    left = hashes.of(begins[whole], cut)
    likely = known.likely(left)
    whole, cut, left = whole[likely], cut[likely], left[likely]
    right = hashes.of(cut, ends[whole])
    likely = known.likely(right)
    first = known.numbers(left[likely])
    second = known.numbers(right[likely])
    found = (first >= 0) & (second >= 0)
    return whole[likely][found], first[found], second[found]


class _Hashes:
    """Hashes of parts of a text."""

    def __init__(self, text: str) -> None:
        letters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        terms = letters.astype(np.uint64) + np.uint64(1)  # or letters of code 0 would not count
        terms *= _powers(_BASE, len(terms))
        self._sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
        self._inverses = _powers(pow(_BASE, -1, 2**64), len(terms) + 1)

    def of(self, begins: Integers, ends: Integers) -> Integers:
        """The hash of each part, of its first letter to the one before its end."""
        hashes: Integers = (self._sums[ends] - self._sums[begins]) * self._inverses[begins]
        return hashes


class _Known:
    """The numbers of texts by their hashes."""

    def __init__(self, hashes: Integers) -> None:
        self._order = np.argsort(hashes)
        self._sorted = hashes[self._order]
        self._table = np.zeros(2**_TABLE_BITS, np.bool_)
        self._table[self._places(hashes)] = True

    def likely(self, hashes: Integers) -> Integers:
        """Where texts of such hashes may be known; elsewhere none is."""
        return np.flatnonzero(self._table[self._places(hashes)])

    def numbers(self, hashes: Integers) -> Integers:
        """The number of the text of each hash; -1 where there is none."""
        places = np.searchsorted(self._sorted, hashes)
        places = np.minimum(places, len(self._sorted) - 1)
        return np.where(self._sorted[places] == hashes, self._order[places], -1)

    @staticmethod
    def _places(hashes: Integers) -> Integers:
        return hashes >> np.uint64(64 - _TABLE_BITS)


def _powers(base: int, count: int) -> Integers:
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)
