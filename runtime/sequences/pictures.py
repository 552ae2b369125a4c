"""Rows of pictures, which a model reads in place of embeddings of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edgespec.bundle import PICTURED, PICTURES
from edgespec.runtime.arrays import Array, Floats


@dataclass(frozen=True, eq=False)
class Pictures:
    """The rows of pictures in a sequence.

    Attributes:
        places: [n] int64, ascending: the positions of the tokens in whose place they are read.
        rows: [n, hidden] float32.
    """

    places: Array
    rows: Floats

    @cached_property
    def _keys(self) -> list[int]:
        """Numbers below 0, as no token has, that are those of another row if it is the same."""
        hashes = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in self.rows]
        return [-1 - (int.from_bytes(each, "little") >> 1) for each in hashes]

    def keyed(self, tokens: Sequence[int]) -> list[int]:
        """Returns tokens of a sequence with numbers of what pictures show in their places."""
        keyed = list(tokens)
        for place, key in zip(self.places.tolist(), self._keys, strict=True):
            if place >= len(keyed):
                break
            keyed[place] = key
        return keyed


def pictured(parts: Sequence[tuple[Pictures | None, Array]], width: int) -> dict[str, Array]:
    """Returns the inputs of a graph that reads pictures.

    Args:
        parts: what each part of a pass reads of pictures, and the positions of its rows.
        width: size of a row.
    """
    which = np.zeros(sum(len(positions) for _, positions in parts), np.bool_)
    rows, row = np.zeros((len(which), width), np.float32), 0
    for pictures, positions in parts:
        if pictures is not None:
            found = np.searchsorted(pictures.places, positions)
            found[found == len(pictures.places)] = 0
            own = slice(row, row + len(positions))
            which[own] = here = pictures.places[found] == positions
            rows[own][here] = pictures.rows[found[here]]
        row += len(positions)
    return {PICTURED: which, PICTURES: rows}
