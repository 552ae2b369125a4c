"""Which texts of a model share a pass, by the lengths of their caches.

A shared pass reads the weights once for all its texts, and attends for each of them to as many
cache rows as the longest has. So a short text beside a long one pays for rows that it does not
have, and in a pass of its own it pays for the weights again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from edgespec.bundle.caches import CacheGroup
from edgespec.runtime.shapes import kept_rows

PassCosts = Callable[[int, int], float]
"""Returns what a pass of so many texts costs, whose caches have so many rows each."""

# Bytes of weights that are read in the time in which attention works through a number of the cache,
# with float32 caches on OpenVINO and ONNX Runtime. Narrower ones are widened, which takes as long.
_NUMBER = 12


def reading(weights: int, groups: Sequence[CacheGroup]) -> PassCosts:
    """Returns what passes of few rows cost, in bytes of weights.

    Args:
        weights: bytes of the model's weights.
        groups: the layers that have a cache.
    """

    def cost(texts: int, capacity: int) -> float:
        numbers = sum(group.width * kept_rows(capacity, group.window) for group in groups)
        return weights + _NUMBER * texts * numbers

    return cost


def parts(capacities: Sequence[int], cost: PassCosts) -> list[int]:
    """Splits texts into passes that together cost least.

    Args:
        capacities: cache rows of each text.
        cost: of a pass.

    Returns:
        For each text, the largest capacity in its pass; texts of the same one share it.
    """
    known = sorted(set(capacities))
    up_to = [0, *accumulate(capacities.count(each) for each in known)]
    # The cheapest way for the texts of the first n capacities, and where its last pass begins.
    best = [(0.0, 0)]
    for end in range(1, len(known) + 1):
        ways = (
            (best[first][0] + cost(up_to[end] - up_to[first], known[end - 1]), first)
            for first in range(end)
        )
        best.append(min(ways))
    largest, end = dict[int, int](), len(known)
    while end:
        first = best[end][1]
        largest.update(dict.fromkeys(known[first:end], known[end - 1]))
        end = first
    return [largest[each] for each in capacities]
