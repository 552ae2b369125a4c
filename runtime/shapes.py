"""Sizes that shapes are rounded up to, so that engines plan few of them and an NPU can fix them."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from edgespec.errors import InputError

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128)
"""Rows of one call; the largest is the prefill chunk."""

FINE_ROWS = tuple(sorted({*ROW_BUCKETS, 3, 5, 6, 10, 12, 24}))
"""The same on engines to which another shape costs nothing; by these trees are sized."""

SCRATCH_ROWS = 128
"""Rows of a draft model's cache that drafts may take behind the text."""

WINDOW = 64
"""Rows at the end of the cache that ordered attention takes beside a call's own."""

RECENT = WINDOW + 1
"""A row's last positions, itself included, which ordered attention adds up apart from older ones:
so many tokens one after the other may a call hold."""

COLUMNS = 72
"""Of scores for them; the first is always hidden."""

FIXED_WINDOW = WINDOW + SCRATCH_ROWS
"""The window and all scratch rows, where shapes are fixed."""

BORDER = 1024
"""No call has rows on both sides of this position, and none before it a larger capacity: OpenVINO
adds up products over more rows of a cache in parts."""

_EXACT_ROWS = 64  # with the window no more than ONNX Runtime adds up in one part

_SHORT = (256, 384, 512, 768, 1024)  # capacities
_LISTS = re.compile(r"(\d{1,9}(?:/\d{1,9})*)x(\d{1,9}(?:/\d{1,9})*)")


class Shape(NamedTuple):
    """Of a call: S rows, which all may be asked for logits, before a cache of capacity C."""

    rows: int
    capacity: int


@dataclass(frozen=True)
class Shapes:
    """What the shapes of calls are rounded up to.

    Attributes:
        rows: S, ascending.
        capacities: C, ascending, where shapes are fixed before a stage is compiled; none: they are
            not, and capacities are those of `capacity_bucket`.
    """

    rows: tuple[int, ...] = ROW_BUCKETS
    capacities: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Shapes:
        """Fixed shapes as users write them: 8/32x1024 for S of 8 and 32, and C of 1024.

        Raises:
            InputError: on anything else.
        """
        found = _LISTS.fullmatch(text)
        if found is None:
            raise InputError(f"shapes {text!r}: give rows and capacities, as 8/32x1024")
        rows, capacities = (sorted({int(n) for n in part.split("/")}) for part in found.groups())
        if rows[0] < 1 or rows[-1] > ROW_BUCKETS[-1] or capacities[0] < rows[-1]:
            raise InputError(
                f"shapes {text!r}: give 1 to {ROW_BUCKETS[-1]} rows, and capacities that hold them"
            )
        return cls(tuple(rows), tuple(capacities))

    def __str__(self) -> str:
        return "x".join("/".join(map(str, part)) for part in (self.rows, self.capacities))

    @property
    def all(self) -> tuple[Shape, ...]:
        """Each shape; none where they are not fixed."""
        return tuple(Shape(*each) for each in product(self.rows, self.capacities))

    def row_bucket(self, rows: int) -> int:
        """The bucket that holds `rows` rows, 1 to the largest bucket."""
        return self.rows[bisect_left(self.rows, rows)]

    def capacity_bucket(self, rows: int) -> int:
        """Cache rows to make room for, so that it has `rows` of them.

        Raises:
            InputError: if shapes are fixed, and none has so many.
        """
        if not self.capacities:
            return capacity_bucket(rows)
        if rows > self.capacities[-1]:
            raise InputError(
                f"a text of {rows} rows is longer than the fixed shapes {self} allow: "
                f"give a capacity of {capacity_bucket(rows)} or more"
            )
        return self.capacities[bisect_left(self.capacities, rows)]

    def exact(self, single: bool = False) -> Shapes:
        """Those among them in which engines compute a row alike.

        Args:
            single: whether they do so for odd numbers of rows, too: some have another kernel for
                a last row without a partner.
        """
        rows = tuple(n for n in self.rows if n <= _EXACT_ROWS and (single or n % 2 == 0))
        return replace(self, rows=rows) if rows else self

    def common(self, other: Shapes) -> Shapes:
        """The shapes that two devices both have.

        Raises:
            InputError: if there are none.
        """
        rows = tuple(sorted(set(self.rows) & set(other.rows)))
        capacities = self.capacities or other.capacities
        if self.capacities and other.capacities:
            capacities = tuple(sorted(set(self.capacities) & set(other.capacities)))
        if not rows or (not capacities and (self.capacities or other.capacities)):
            raise InputError(f"shapes {self} and {other} have none in common: give both the same")
        return Shapes(rows, capacities)


def dimension(text: str, shape: Shape) -> int:
    """A symbolic dimension of a stage's input or output, such as C+S, where shapes are fixed."""
    rows, capacity = shape
    sizes = {"S": rows, "R": rows, "C": capacity, "N": COLUMNS, "W": FIXED_WINDOW}
    return sum(sizes[part] for part in text.split("+"))


ANY_SHAPES = Shapes()
"""Of engines that compile a stage once for all shapes."""

FINE_SHAPES = Shapes(FINE_ROWS)
"""Of those among them to which another number of rows costs nothing."""

NPU_SHAPES = Shapes((8, 32), (1024,))
"""Of NPUs that nobody has given or chosen shapes for, as where their compiler is only asked."""


def row_bucket(rows: int) -> int:
    """The bucket that holds `rows` rows, 1 to the largest bucket."""
    return ROW_BUCKETS[bisect_left(ROW_BUCKETS, rows)]


def capacity_bucket(rows: int) -> int:
    """Cache rows to make room for.

    Idle rows cost time in every pass, and a new capacity costs an engine new buffers: at most a
    third is idle up to 1024 rows, and a fifth beyond.
    """
    if rows <= _SHORT[-1]:
        return _SHORT[bisect_left(_SHORT, rows)]
    step = 1 << ((rows - 1).bit_length() - 3)  # a quarter of the power of two below
    return -(-rows // step) * step
