"""Drafts by a head that reads keys and values of the target (Gemma 4's assistants, 2026)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgespec.bundle import TARGET_FEATURES
from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.drafters.growth import GrowingNode, State
from edgespec.runtime.drafters.head import HeadGraph, reading_above
from edgespec.runtime.drafters.skip import SkipDrafter
from edgespec.runtime.sequences.model import AFTER, Rows


class AssistantGraph(HeadGraph):
    """A graph whose rows see what the target has read of their sequences, and have no slots.

    A row sees its sequence's slots and its own. So its own is said to be the last one of these.
    """

    def __call__(self, feeds: Mapping[str, Array]) -> Mapping[str, Floats]:
        """Makes a pass; see `NativeGraph`."""
        context = feeds["context"]
        starts = feeds["starts"]
        sequence = feeds["sequence"]
        write = feeds["write"]
        some = np.diff(starts) > 0
        if len(context):  # else costs are measured, and rows see what lies in slots of their own
            last = starts[1:] - 1
            write = np.where(some[sequence], context[last[sequence]], write)
            context = np.delete(context, last[some])
            starts = starts - np.concatenate([[0], np.cumsum(some)])
        return super().__call__(
            {
                **feeds,
                "write": write.astype(np.int32),
                "parent": np.full(len(write), AFTER, np.int32),
                "context": context,
                "starts": starts.astype(np.int32),
            }
        )


class AssistantDrafter(SkipDrafter):
    """Drafts with a head that has no keys and values, since it reads those of the target.

    All of its rows stand at the position of the newest token, which the target has not read. The
    first one reads the features of the token before; those of a level what the head gave for the
    row above.

    Args:
        model: the head, with an `AssistantGraph`, over the target's pool.
    """

    name = "head"

    def _make_room(self, state: State, depth: int) -> bool:
        return 0 < state.sequence.length == state.generation.features.stop

    def _chain(self, state: State, tokens: list[int], wanted: list[int]) -> Rows:
        rows = super()._chain(state, tokens, wanted)
        features = state.generation.features.read(state.sequence.length - 1, 1)
        return replace(rows, reads={TARGET_FEATURES: features})

    def _level(self, state: State, nodes: Sequence[GrowingNode]) -> Rows:
        return reading_above(replace(super()._level(state, nodes), branch=[]), nodes)
