"""Layer-skip drafts: which sublayers may be left out, and where that cuts the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from edgespec import bundle
from edgespec.bundle.sublayers import Sublayers
from edgespec.errors import InputError

MOST_STAGES = 8
"""Of a target: each one is a call more in every pass."""


@dataclass(frozen=True)
class Trial:
    """A target that is being exported, to try skip sets with. Its bundles are not saved.

    Attributes:
        gated: the target as one stage with an input more, `gates`, [sublayers] float32: what each
            one's contribution is multiplied by.
        cut: the target in stages that end before these sublayers. The graphs are overwritten when
            it is called again.
        cuts: where the user wants stages to end.
    """

    gated: bundle.Bundle
    cut: Callable[[Iterable[int]], bundle.Bundle]
    cuts: frozenset[int]


SkipSearch = Callable[[Trial, tuple[bundle.SkipSet, ...]], tuple[bundle.SkipSet, ...]]
"""Scores the skip sets it is given, or finds some where there are none; the best come first."""


def check_skip_sets(sets: Sequence[Sequence[int]], layout: Sublayers) -> None:
    """Refuse what cannot be drafted with.

    Args:
        sets: the numbers of the sublayers that each leaves out, at least one.
        layout: of the target.

    Raises:
        InputError: if a set leaves a part of the first layer out, or if all of them cut the target
            into too many stages.
    """
    for skipped in sets:
        if min(skipped) in layout.of_layer(0):
            raise InputError(f"skip set {layout.describe(skipped)}: layer 0 cannot be left out")
    stages = len(skip_cuts(sets, layout)) + 1
    if stages > MOST_STAGES:
        raise InputError(
            f"the skip sets cut the target into {stages} stages, {MOST_STAGES} are worth their "
            "cost at most: give fewer sets, or such that begin and end at the same layers"
        )


def skip_cuts(sets: Iterable[Sequence[int]], layout: Sublayers) -> set[int]:
    """Sublayers before which a stage ends, so that every stage is in a set or outside it."""
    found: set[int] = set()
    for skipped in sets:
        left_out = set(skipped)
        found |= {
            place
            for place in range(1, layout.head + 1)
            if (place in left_out) != (place - 1 in left_out)
        }
    return found
