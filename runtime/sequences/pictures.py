"""Rows of pictures, which a model reads in place of embeddings of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from edgespec.bundle import PICTURED, PICTURES, SIGHT
from edgespec.runtime.arrays import Array, Floats


@dataclass(frozen=True, eq=False)
class Pictures:
    """The rows of pictures in a sequence.

    Attributes:
        places: [n] int64, ascending: the positions of the tokens in whose place they are read.
        rows: [n, hidden] float32.
        together: numbers of rows of pictures whose rows see each other, so that each is read in one
            pass; empty: each row sees those before it.
        turns: [n, 4] int64: what is added to a row's position where it is rotated by time, by the
            line of its picture and by the column, and to those of tokens behind it; see `in_grids`.
            None: nothing is.
    """

    places: Array
    rows: Floats
    together: tuple[int, ...] = ()
    turns: Array | None = None

    @cached_property
    def _borders(self) -> Array:
        """Numbers of the rows with which begins what is read in one pass, and the end."""
        if not self.together:
            return np.arange(len(self.rows) + 1)
        return np.cumsum([0, *self.together])

    @cached_property
    def _keys(self) -> list[int]:
        """Numbers below 0, as no token has, that are those of another row if it is the same."""
        hashes = list[bytes]()
        for start, stop in pairwise(self._borders.tolist()):
            shown = hashlib.blake2b(self.rows[start:stop].tobytes())
            if self.turns is not None:
                shown.update(self.turns[start].tobytes())
            for number in range(stop - start):
                shown.update(bytes([number & 255]))
                hashes.append(shown.digest()[:8])
        return [-1 - (int.from_bytes(each, "little") >> 1) for each in hashes]

    def begun(self, length: int) -> int:
        """Returns so many tokens of a sequence, or fewer, that end within no picture."""
        row = np.searchsorted(self.places, length)
        border = np.searchsorted(self._borders, row, "right") - 1
        return length - int(row - self._borders[border])

    def following(self, length: int, count: int) -> int:
        """Returns how many of the next tokens a pass may read so that it ends within no picture.

        Args:
            length: number of tokens that were read, as `begun` gives it.
            count: how many it is to read; a picture at their beginning is read wholly.
        """
        begun = self.begun(length + count)
        if begun > length:
            return begun - length
        row = np.searchsorted(self.places, length)
        return int(self._borders[np.searchsorted(self._borders, row, "right")] - row)

    def sight(self, rows: Array) -> Array:
        """Returns how many rows of the same picture follow each of these rows, and are seen."""
        behind = self._borders[np.searchsorted(self._borders, rows, "right")]
        following: Array = behind - 1 - rows
        return following

    def turned(self, positions: Array) -> Array:
        """Returns by what rows are rotated, [n, 3] int64: by time, line and column.

        Args:
            positions: [n] int64, of the rows in their sequence.
        """
        if self.turns is None:
            return np.repeat(positions[:, None], 3, 1)
        found = np.searchsorted(self.places, positions, "right") - 1
        shown = (self.places[found] == positions)[:, None]
        added = np.where(shown, self.turns[found, :3], self.turns[found, 3:])
        return positions[:, None] + np.where(found[:, None] < 0, 0, added)

    def keyed(self, tokens: Sequence[int]) -> list[int]:
        """Returns tokens of a sequence with numbers of what pictures show in their places."""
        keyed = list(tokens)
        for place, key in zip(self.places.tolist(), self._keys, strict=True):
            if place >= len(keyed):
                break
            keyed[place] = key
        return keyed


def in_grids(grids: Sequence[tuple[int, int]]) -> Array:
    """Returns the `Pictures.turns` of pictures of so many lines and columns of rows.

    A picture's rows begin where the text before it ends, and the text behind it goes on from their
    largest position (interleaved M-RoPE: Huang et al., 2025).
    """
    parts = list[Array]()
    behind = 0
    for lines, columns in grids:
        numbers = np.arange(lines * columns)
        time = behind - numbers
        behind += max(lines, columns) - len(numbers)
        added = time, time + numbers // columns, time + numbers % columns
        parts.append(np.stack([*added, np.full_like(numbers, behind)], 1))
    return np.concatenate(parts)


def pictured(parts: Sequence[tuple[Pictures | None, Array]], width: int) -> dict[str, Array]:
    """Returns the inputs of a graph that reads pictures.

    Args:
        parts: what each part of a pass reads of pictures, and the positions of its rows.
        width: size of a row, with those that are added to the stream.
    """
    which = np.zeros(sum(len(positions) for _, positions in parts), np.bool_)
    sight = np.zeros(len(which), np.int32)
    rows = np.zeros((len(which), width), np.float32)
    row = 0
    for pictures, positions in parts:
        if pictures is not None:
            found = np.searchsorted(pictures.places, positions)
            found[found == len(pictures.places)] = 0
            own = slice(row, row + len(positions))
            which[own] = here = pictures.places[found] == positions
            rows[own][here] = pictures.rows[found[here]]
            sight[own][here] = pictures.sight(found[here])
        row += len(positions)
    return {PICTURED: which, PICTURES: rows, SIGHT: sight}
