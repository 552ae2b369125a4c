"""How much faster a head should make its target, told before it is exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

from edgespec.training.shape import HeadShape

Seconds = Callable[[int], float]
"""Seconds of a pass by its rows, or of a draft by its tokens."""


def promised_speedup(acceptance: Sequence[float], verify: Seconds, draft: Seconds) -> float:
    """Returns the speed of drafting chains of the best length, relative to plain decoding.

    A chain of n tokens yields 1 + sum(product of the first d acceptances, d = 1..n) tokens
    (Leviathan et al., 2023). Trees yield more, and Python's time between calls is not counted.

    Args:
        acceptance: share of accepted tokens by depth, each where all before were accepted.
        verify: seconds of the target's pass by its rows.
        draft: seconds of a draft by its tokens.
    """
    reached = accumulate(acceptance, mul)
    tokens = list(accumulate(reached, initial=1.0))
    rates = (made / (verify(n + 1) + draft(n)) for n, made in enumerate(tokens))
    best: float = max(rates) * verify(1)
    return best


def draft_seconds(shape: HeadShape, target_bytes: int, verify: Seconds, tokens: int) -> float:
    """Estimates the seconds of drafting a chain.

    Calls of few rows take as long as reading the weights does, and a head has one byte for each.

    Args:
        shape: sizes of the head.
        target_bytes: bytes of the target's weights.
        verify: seconds of the target's pass by its rows.
        tokens: length of the chain.
    """
    if not tokens:
        return 0.0
    return sum(map(verify, shape.call_rows(tokens))) * shape.parameters / target_bytes
