"""Sizes that shapes are rounded up to, so that engines plan few of them and an NPU can fix them."""

from __future__ import annotations

from bisect import bisect_left

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Rows of one call; the largest is the prefill chunk."""

SCRATCH_ROWS = 128
"""Rows of a draft model's cache that drafts may take behind the text."""

_FIRST_CAPACITY = 256


def row_bucket(rows: int) -> int:
    """The bucket that holds `rows` rows, 1 to the largest bucket."""
    return ROW_BUCKETS[bisect_left(ROW_BUCKETS, rows)]


def capacity_bucket(rows: int) -> int:
    """Cache rows to make room for: 256, 384, 512, 768, 1024, … so that at most a third is idle."""
    size = _FIRST_CAPACITY
    while size < rows:
        size += size // 2 if size & (size - 1) == 0 else size // 3
    return size
