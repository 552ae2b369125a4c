"""Sizes that the shapes of calls are rounded up to.

Few distinct shapes mean few execution plans in an engine, and let NPUs compile for fixed shapes.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from edgespec.bundle.caches import is_rows_symbol, window_of_rows
from edgespec.errors import InputError

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128)
"""Numbers of rows of one call. The largest is the size of a prefill chunk."""

FINE_ROWS = tuple(sorted({*ROW_BUCKETS, 3, 5, 6, 10, 12, 24}))
"""Numbers of rows on engines where a further shape costs nothing. Tree sizes are chosen by them."""

SCRATCH_ROWS = 128
"""Number of cache rows after the text that the drafts of a draft model may use."""

DRAFT_WINDOW = 2048 - SCRATCH_ROWS
"""Most tokens of a text that a draft sees at a time: the last ones. So its calls take the same time
behind a long text as behind a short one (MagicDec: Sadhukhan et al., 2024)."""

PARALLEL_TOKENS = 8
"""Largest number of tokens that a draft model predicts in one call. Published ones were trained for
eight (An et al., PARD, 2025)."""

PARALLEL_ROWS = 2 * PARALLEL_TOKENS
"""Largest number of rows of such a call: one more token than are drafted, as a round brings at
best, and masks for all but the first of the tokens to come."""

WINDOW = 64
"""Number of rows at the end of the cache that ordered attention takes beside a call's own rows."""

RECENT = WINDOW + 1
"""Number of a row's last positions, its own included, that ordered attention sums apart from older
ones. A call may hold at most this many consecutive tokens."""

COLUMNS = 72
"""Number of columns of attention scores for these positions. The first is always masked."""

FIXED_WINDOW = WINDOW + SCRATCH_ROWS
"""Size of the window and all scratch rows together, where shapes are fixed."""

BORDER = 1024
"""Position that no call has rows on both sides of. Calls before it use no larger capacity. OpenVINO
sums products over more cache rows in several parts, which changes the last bits."""

_SPARE_ROWS = 2 * SCRATCH_ROWS
"""Number of rows that layers with a window keep beyond it, for drafts and for going back."""

_EXACT_ROWS = 64  # with the window, the most rows that ONNX Runtime sums in one part

_SHORT = (256, 384, 512, 768, 1024)  # capacities of short caches
_LISTS = re.compile(r"(\d{1,9}(?:/\d{1,9})*)x(\d{1,9}(?:/\d{1,9})*)")


class Shape(NamedTuple):
    """The fixed shape of a call.

    Attributes:
        rows: S, the number of rows; logits may be asked for all of them.
        capacity: C, the number of cache rows.
    """

    rows: int
    capacity: int


@dataclass(frozen=True)
class Shapes:
    """Sizes that the shapes of calls are rounded up to.

    Attributes:
        rows: values of S, ascending.
        capacities: values of C, ascending, where shapes are fixed before a stage is compiled. Empty
            where they are not; then capacities are those of `capacity_bucket`.
    """

    rows: tuple[int, ...] = ROW_BUCKETS
    capacities: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Shapes:
        """Parses fixed shapes as users write them: 8/32x1024 for S of 8 and 32, and C of 1024.

        Raises:
            InputError: if the text has another form, or a number is out of range.
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
        """All fixed shapes; empty where shapes are not fixed."""
        return tuple(Shape(*each) for each in product(self.rows, self.capacities))

    def row_bucket(self, rows: int) -> int:
        """Returns the smallest bucket that holds `rows` rows, from 1 to the largest bucket."""
        return self.rows[bisect_left(self.rows, rows)]

    def capacity_bucket(self, rows: int) -> int:
        """Returns the cache capacity to use for `rows` rows.

        Raises:
            InputError: if shapes are fixed, and no capacity is large enough.
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
        """Returns the shapes in which engines compute a row bit for bit alike.

        Args:
            single: whether odd numbers of rows are among them. Some engines use another kernel for
                a last row without a partner.
        """
        rows = tuple(n for n in self.rows if n <= _EXACT_ROWS and (single or n % 2 == 0))
        return replace(self, rows=rows) if rows else self

    def common(self, other: Shapes) -> Shapes:
        """Returns the shapes that two devices have in common.

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
    """Returns the size of a symbolic dimension, such as C+S, of calls of one shape and text."""
    rows, capacity = shape
    sizes = {"S": rows, "R": rows, "N": COLUMNS, "W": FIXED_WINDOW, "T": 1, "L": rows}
    return sum(
        kept_rows(capacity, window_of_rows(part)) if is_rows_symbol(part) else sizes[part]
        for part in text.split("+")
    )


def ring_rows(window: int) -> int:
    """Returns the most rows that layers keep that see a window of so many positions.

    They are a ring: the row of position p is p modulo their number. So it is the same whatever call
    reads it, and with it the order in which attention adds.
    """
    return -(-window // WINDOW) * WINDOW + _SPARE_ROWS


def kept_rows(capacity: int, window: int | None) -> int:
    """Returns the rows that layers keep where the capacity of a text's cache is `capacity`.

    Args:
        capacity: number of rows of layers that see all positions.
        window: number of positions that the layers see; None: all.
    """
    return capacity if window is None else min(capacity, ring_rows(window))


ANY_SHAPES = Shapes()
"""Shapes of engines that compile a stage once for all shapes."""

FINE_SHAPES = Shapes(FINE_ROWS)
"""Shapes of those engines among them where another number of rows costs nothing."""

NPU_SHAPES = Shapes((8, 32), (1024,))
"""Shapes of NPUs for which none were given or chosen, as where only their compiler is queried."""


def row_bucket(rows: int) -> int:
    """Returns the smallest bucket that holds `rows` rows, from 1 to the largest bucket."""
    return ROW_BUCKETS[bisect_left(ROW_BUCKETS, rows)]


def capacity_bucket(rows: int) -> int:
    """Returns the cache capacity to use for `rows` rows.

    Unused rows cost time in every pass, and each new capacity costs an engine new buffers. At most
    a third of the rows is unused up to 1024 rows, and a fifth beyond.
    """
    if rows <= _SHORT[-1]:
        return _SHORT[bisect_left(_SHORT, rows)]
    step = 1 << ((rows - 1).bit_length() - 3)  # a quarter of the largest power of two below
    return -(-rows // step) * step
