"""Drafts by a smaller model of the same vocabulary."""

from __future__ import annotations

from typing import NamedTuple

from edgespec.runtime.drafters.growth import Ids, State, TreeDrafter
from edgespec.runtime.sequences.model import Graph, Model
from edgespec.runtime.sequences.pool import TokenSequence
from edgespec.runtime.speculation.generation import Generation, Reading
from edgespec.runtime.speculation.plan import PassPlan

_LATEST = 256  # tokens of a prompt that tell of which kind a text is
_MOST_OTHERS = 0.08  # share of other tokens with which scoring the frequent ones alone still pays
_WEIGHT = 0.02  # of a token in the moving average of that share


class Frequent(NamedTuple):
    """The draft model's graph, but for the scores of tokens that are not frequent.

    Attributes:
        graph: scores the first tokens alone.
        tokens: how many these are.
    """

    graph: Graph
    tokens: int


class ModelDrafter(TreeDrafter):
    """Drafts with a smaller model of the same vocabulary.

    The output projection over a large vocabulary is a quarter of a small model. So where texts have
    few others, the frequent tokens alone are scored (after Zhao et al., FR-Spec, 2025).

    Args:
        model: the draft model.
        context_length: largest number of tokens that it can read.
        ids: see `TreeDrafter`.
        frequent: see `Frequent`; None if all tokens are to be scored always.
    """

    name = "model"

    def __init__(
        self,
        model: Model,
        context_length: int,
        ids: Ids | None = None,
        frequent: Frequent | None = None,
    ) -> None:
        super().__init__(model, ids)
        self._context_length = context_length
        self._whole = model.graph
        self._frequent = frequent
        self._others = dict[Generation, float]()  # share of tokens that are not frequent
        if frequent is not None:
            model.graph = frequent.graph

    def begin(self, generation: Generation) -> bool:
        """See `Drafter`."""
        begun = super().begin(generation)
        if begun and self._frequent is not None:
            last = generation.tokens[-_LATEST:]
            others = sum([token >= self._frequent.tokens for token in last])
            self._others[generation] = others / len(last)
        return begun

    def draft(self, plan: PassPlan) -> None:
        """See `Drafter`."""
        if self._frequent is not None:
            shares = [self._others.get(part.generation, 0.0) for part in plan.drafting]
            few = max(shares) < _MOST_OTHERS
            self.model.graph = self._frequent.graph if few else self._whole
        super().draft(plan)

    def observe(self, generation: Generation, reading: Reading) -> None:
        """See `Drafter`."""
        super().observe(generation, reading)
        if self._frequent is not None:
            for token in reading.tokens:
                is_other = token >= self._frequent.tokens
                self._others[generation] += (is_other - self._others[generation]) * _WEIGHT

    def end(self, generation: Generation) -> None:
        """See `Drafter`."""
        super().end(generation)
        self._others.pop(generation, None)

    def _sequence(self, generation: Generation) -> TokenSequence:
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
