"""What may be the beginning of a text that is looked for, and so is held back from a stream."""

from __future__ import annotations

from collections.abc import Sequence


def overlap(text: str, others: Sequence[str]) -> int:
    """Returns the length of the longest end of a text with which one of others begins.

    Args:
        text: a text that has none of the others in it.
        others: texts that are looked for.
    """
    longest = max(map(len, others), default=1) - 1
    lengths = range(min(longest, len(text)), 0, -1)
    return next((n for n in lengths if any(each.startswith(text[-n:]) for each in others)), 0)
