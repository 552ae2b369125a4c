"""Drafts over the target's own keys and values, by a part of it or by a head that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edgespec.bundle import TARGET_FEATURES
from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.drafters.head import HeadGraph, reading_above
from edgespec.runtime.drafters.reader import DraftReader, DraftSequence
from edgespec.runtime.sequences.model import AFTER, Rows
from edgespec.runtime.speculation.generation import Generation


class SharedPoolReader(DraftReader):
    """Reads with the target without some of its sublayers, over its own keys and values.

    Zhang et al., Draft & Verify, 2023. Only the last token is read; its row and those of the nodes
    lie in free slots of the target's pool until the pass, which computes them anew.

    Args:
        model: passes of the graph without the sublayers, over the target's pool.
    """

    def begin(self, generation: Generation) -> DraftSequence:
        """See `DraftReader`."""
        return DraftSequence(generation, generation.sequence)

    def share(self, draft: DraftSequence) -> None:
        """See `DraftReader`; the engine does that."""

    def leave(self, draft: DraftSequence, ended: bool) -> None:
        """See `DraftReader`; the engine does that."""

    def end(self, draft: DraftSequence) -> None:
        """See `DraftReader`; the sequence is the engine's."""

    def make_room(self, draft: DraftSequence, depth: int) -> bool:
        """See `DraftReader`."""
        return True

    def keep(self, rows: Rows) -> list[int]:
        """See `DraftReader`."""
        return list(rows.slots)

    def kept(self, slots: list[int], count: int) -> list[int]:
        """See `DraftReader`."""
        return []


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


class AssistantReader(SharedPoolReader):
    """Reads with a head that has no keys and values, since it sees those of the target.

    Gemma 4's assistants, 2026. All of its rows stand at the position of the newest token, which the
    target has not read. The first one reads the features of the token before; those of a level what
    the head gave for the row above.

    Args:
        model: the head, with an `AssistantGraph`, over the target's pool.
    """

    def make_room(self, draft: DraftSequence, depth: int) -> bool:
        """See `DraftReader`."""
        return 0 < draft.sequence.length == draft.generation.features.stop

    def chain(self, draft: DraftSequence, tokens: list[int], wanted: list[int]) -> Rows:
        """See `DraftReader`."""
        rows = super().chain(draft, tokens, wanted)
        features = draft.generation.features.read(draft.sequence.length - 1, 1)
        return replace(rows, reads={TARGET_FEATURES: features})

    def level(
        self, draft: DraftSequence, tokens: list[int], slots: list[int], features: Floats | None
    ) -> Rows:
        """See `DraftReader`."""
        return reading_above(super().level(draft, tokens, [], features), features)
