"""Drafts by a smaller model of the same vocabulary."""

from __future__ import annotations

from edgespec.runtime.drafters.growth import Ids, State, TreeDrafter
from edgespec.runtime.sequences.model import Model
from edgespec.runtime.sequences.pool import Sequence
from edgespec.runtime.speculation.generation import Generation


class ModelDrafter(TreeDrafter):
    """Drafts with a smaller model of the same vocabulary.

    Args:
        model: the draft model.
        context_length: largest number of tokens that it can read.
        ids: see `TreeDrafter`.
    """

    name = "model"

    def __init__(self, model: Model, context_length: int, ids: Ids | None = None) -> None:
        super().__init__(model, ids)
        self._context_length = context_length

    def _sequence(self, generation: Generation) -> Sequence:
        return self.model.sequence(generation.tokens)

    def _share(self, state: State) -> None:
        if not state.sequence.length:
            most = len(state.sequence.tokens) - 1  # the last token's logits are wanted
            self.model.prefixes.extend(state.sequence, most)

    def _leave(self, state: State, ended: bool) -> None:
        self.model.prefixes.add(state.sequence, state.sequence.length if ended else 0)

    def _unread(self, state: State) -> list[int]:
        return state.sequence.unread

    def _make_room(self, state: State, depth: int) -> bool:
        return len(state.sequence.tokens) + depth <= self._context_length
