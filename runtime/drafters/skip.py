"""Layer-skip drafts: the target itself without some of its sublayers."""

from __future__ import annotations

from edgespec.runtime.drafters.growth import GrowingNode, State, TreeDrafter
from edgespec.runtime.sequences.model import Rows
from edgespec.runtime.sequences.pool import TokenSequence
from edgespec.runtime.speculation.generation import Generation


class SkipDrafter(TreeDrafter):
    """Drafts with a part of the target, which reads the sequences' own keys and values.

    Zhang et al., Draft & Verify, 2023. Only the last token is read; its row and those of the nodes
    lie in free slots of the target's pool until the pass, which computes them anew.

    Args:
        model: passes of the graph without the sublayers, over the target's pool.
    """

    name = "layer-skip"

    def end(self, generation: Generation) -> None:
        """See `Drafter`; the sequence is the engine's."""
        self.model.pool.free(self._states.pop(generation).run)

    def _sequence(self, generation: Generation) -> TokenSequence:
        return generation.sequence

    def _unread(self, state: State) -> list[int]:
        return state.sequence.unread

    def _make_room(self, state: State, depth: int) -> bool:
        return True

    def _take(self, state: State, root: GrowingNode, rows: Rows) -> None:
        root.slots = rows.slots
        state.run = list(rows.slots)

    def _kept(self, node: GrowingNode, count: int) -> list[int]:
        return []
