"""Checks skip sets, and computes where they cut the target into stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from edgespec import bundle
from edgespec.bundle.sublayers import Sublayers
from edgespec.errors import InputError

MOST_STAGES = 8
"""Maximum number of stages of a target; each one adds a call to every pass."""


@dataclass(frozen=True)
class Trial:
    """A target to try skip sets with while it is exported; its manifests are not saved.

    Attributes:
        gated: the target as one stage with an additional input `gates`, [sublayers] float32, by
            which the output of each sublayer is multiplied.
        cut: returns the target in stages that end before the given sublayers; the next call
            overwrites its graphs.
        cuts: sublayers before which the user wants stages to end.
    """

    gated: bundle.Bundle
    cut: Callable[[Iterable[int]], bundle.Bundle]
    cuts: frozenset[int]


SkipSearch = Callable[[Trial, tuple[bundle.SkipSet, ...]], tuple[bundle.SkipSet, ...]]
"""Scores the given skip sets, or searches for some if there are none; the best come first."""


def check_skip_sets(sets: Sequence[Sequence[int]], layout: Sublayers) -> None:
    """Checks that drafts can leave out these sets.

    Args:
        sets: numbers of the sublayers that each set leaves out, at least one.
        layout: the target's sublayers.

    Raises:
        InputError: if a set leaves out a part of the first layer, or attention whose keys and
            values are still read, or the sets together cut the target into too many stages.
    """
    for skipped in sets:
        if min(skipped) in layout.of_layer(0):
            raise InputError(f"skip set {layout.describe(skipped)}: layer 0 cannot be left out")
        if bereft := layout.bereft(skipped):
            source = layout[bereft[0]].source
            raise InputError(
                f"skip set {layout.describe(skipped)}: {layout.describe(bereft)} reads the keys "
                f"and values of {source}a: leave both out, or neither"
            )
    stages = len(skip_cuts(sets, layout)) + 1
    if stages > MOST_STAGES:
        raise InputError(
            f"the skip sets cut the target into {stages} stages, but at most {MOST_STAGES} are "
            "allowed: give fewer sets, or sets that begin and end at the same layers"
        )


def skip_cuts(sets: Iterable[Sequence[int]], layout: Sublayers) -> set[int]:
    """Returns the sublayers before which a stage must end, so that no set splits a stage."""
    found: set[int] = set()
    for skipped in sets:
        left_out = set(skipped)
        found |= {
            place
            for place in range(1, layout.head + 1)
            if (place in left_out) != (place - 1 in left_out)
        }
    return found
