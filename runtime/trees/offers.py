"""How texts that share a pass share its rows: by what the nodes of all their trees promise."""

from __future__ import annotations

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
    offers: Sequence[Offer], rows: int, most_rows: int, tokens: float, seconds: float
) -> list[Granted]:
    """Shares the rows of a pass for the most tokens per second of all texts together.

    The nodes of all trees are ranked by what they add, so a text whose drafts are accepted gets
    rows, and one that gains nothing gets one (goodput: Liu et al., SmartSpec, 2024; Wu et al.,
    TETRIS, 2025). Only passes that fill a bucket are considered: its other rows are paid for.

    Args:
        offers: of texts that share the pass; at least one.
        rows: rows of the pass that are not to be shared: one of each of these texts, and all of
            others.
        most_rows: the most rows of a pass.
        tokens: expected tokens of the round without any of these nodes.
        seconds: of the round besides the pass.
    """
    nodes_of = [[more - less for less, more in pairwise(offer.gains)] for offer in offers]
    each = ((gain, text) for text, nodes in enumerate(nodes_of) for gain in nodes)
    ranked = sorted(each, key=lambda node: -node[0])
    gains = [0.0, *accumulate(gain for gain, _ in ranked)]
    verify = offers[0].verify
    last = min(len(ranked), max(most_rows - rows, 0))
    counts = {0, last, *(bucket - rows for bucket in FINE_ROWS if 0 < bucket - rows < last)}

    def rate(count: int) -> float:
        return (tokens + gains[count]) / (seconds + verify(rows + count))

    best = max(sorted(counts), key=rate)  # of equal ones the smallest
    nodes = [0] * len(offers)
    for _, text in ranked[:best]:
        nodes[text] += 1
    expected = seconds + verify(rows + best)
    return [Granted(count, expected) for count in nodes]
