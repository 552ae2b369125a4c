"""How texts that share a pass share its rows: by what the nodes of all their trees promise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from edgespec.runtime.shapes import FINE_ROWS


@dataclass(frozen=True)
class Offer:
    """What a text would gain by nodes of its tree; it waits to hear how many it gets.

    Attributes:
        gains: expected accepted tokens of its best n nodes, for n from 0 to all. Each node adds no
            more than the one before it.
        verify: seconds of the pass, by the rows of all texts that share it.
        nodes: the number of nodes that it takes where it need not share.
        seconds: expected duration of the round with so many.
    """

    gains: Sequence[float]
    verify: Callable[[int], float]
    nodes: int
    seconds: float

    def alone(self) -> Granted:
        """Returns the answer of whoever runs this text alone."""
        return Granted(self.nodes, self.seconds)


@dataclass(frozen=True)
class Granted:
    """The answer to an `Offer`.

    Attributes:
        nodes: number of nodes that the text may verify.
        seconds: expected duration of the round.
    """

    nodes: int
    seconds: float


def grant(
    offers: Sequence[Offer], rows: int, most_rows: int, texts: int, seconds: float
) -> list[Granted]:
    """Shares the rows of a pass so that the product of all texts' tokens per second is largest.

    So a text whose drafts are accepted gets rows, and one that gains nothing gets one (Liu et al.,
    SmartSpec, 2024; Wu et al., TETRIS, 2025). These add up tokens, so that one text which drafts
    whole pages would slow down all others many times; the product is what proportional fairness is
    (Kelly, 1997), and the same for texts that are alike. Only passes that fill a bucket are
    considered: its other rows are paid for.

    Args:
        offers: of texts that share the pass; at least one.
        rows: rows of the pass that are not to be shared: one of each of these texts, and all of
            others.
        most_rows: the most rows of a pass.
        texts: number of all texts that wait for the round.
        seconds: of the round besides the pass.
    """
    worth = [[math.log1p(gain) for gain in offer.gains] for offer in offers]
    each = (
        (more - less, text) for text, values in enumerate(worth) for less, more in pairwise(values)
    )
    ranked = sorted(each, key=lambda node: -node[0])
    values = [0.0, *accumulate(value for value, _ in ranked)]
    verify = offers[0].verify
    last = min(len(ranked), max(most_rows - rows, 0))
    counts = {0, last, *(bucket - rows for bucket in FINE_ROWS if 0 < bucket - rows < last)}

    def product(count: int) -> float:
        """Returns the logarithm of the product, but for what no count changes."""
        return values[count] - texts * math.log(seconds + verify(rows + count))

    best = max(sorted(counts), key=product)  # of equal ones the smallest
    nodes = [0] * len(offers)
    for _, text in ranked[:best]:
        nodes[text] += 1
    expected = seconds + verify(rows + best)
    return [Granted(count, expected) for count in nodes]
