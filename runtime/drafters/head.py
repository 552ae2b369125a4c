"""Drafts by a head, which reads hidden rows of the target (Li et al., EAGLE-3, 2025)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgespec.bundle import OWN_FEATURES, TARGET_FEATURES
from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.drafters.growth import GrowingNode, Ids, State, TreeDrafter
from edgespec.runtime.sequences.model import Graph, Model, Rows
from edgespec.runtime.sequences.pool import TokenSequence
from edgespec.runtime.speculation.generation import Generation


class HeadGraph:
    """A head's graph, whose rows read features of the target, or the head's own, or else zeros.

    Args:
        graph: makes passes.
        width: size of the target's features.
        own: size of the head's own.

    Attributes:
        graph: see above.
    """

    def __init__(self, graph: Graph, width: int, own: int) -> None:
        self.graph = graph
        self._none = np.empty((0, width), np.float32)
        self._own = own

    def __call__(self, feeds: Mapping[str, Array]) -> Mapping[str, Floats]:
        """Makes a pass; see `NativeGraph`."""
        of_target = feeds.get(TARGET_FEATURES, self._none)
        own = feeds.get(OWN_FEATURES)
        if own is None:
            own = np.zeros((len(feeds["input_ids"]) - len(of_target), self._own), np.float32)
        return self.graph({**feeds, TARGET_FEATURES: of_target, OWN_FEATURES: own})


class HeadDrafter(TreeDrafter):
    """Drafts with a head that was trained for the model, or came with it (MTP: DeepSeek-AI, 2024).

    A row of the head reads the features of a token and the token behind it, so a sequence of n
    tokens, the last of which the target has not read, gives n - 1 rows. A row of a level reads what
    the head gave for the row above instead; once such rows are the sequence's, they are run again
    with the target's features. The head's sequence begins where there are features, and anew where
    it has more rows than the head was trained for.

    Args:
        model: the head, with a `HeadGraph`.
        context_length: largest number of rows that it can read.
        ids: see `TreeDrafter`.
    """

    name = "head"

    def __init__(self, model: Model, context_length: int, ids: Ids | None = None) -> None:
        super().__init__(model, ids)
        self._context_length = context_length

    def _sequence(self, generation: Generation) -> TokenSequence:
        return self.model.sequence([])  # tokens are those of the generation from `first` + 1 on

    def _share(self, state: State) -> None:
        if not state.first + state.sequence.length:
            state.sequence.tokens = state.generation.sequence.keys[1:]
            self.model.prefixes.extend(state.sequence, len(state.sequence.tokens) - 1)

    def _leave(self, state: State, ended: bool) -> None:
        if not state.first:  # else its rows lack what is before them
            state.sequence.tokens = state.generation.sequence.keys[1:]
            self.model.prefixes.add(state.sequence)

    def _make_room(self, state: State, depth: int) -> bool:
        self._share(state)  # of what sequences share with others there are no features
        end = len(state.generation.tokens) - 1
        known = state.generation.features.start
        full = end - state.first + depth > self._context_length
        if full or _next(state) < known:
            state.sequence.cut(0)
            state.first = max(known, end - self._context_length // 2)
        return end - state.first + depth <= self._context_length

    def _unread(self, state: State) -> list[int]:
        return state.generation.tokens[_next(state) + 1 :]

    def _chain(self, state: State, tokens: list[int], wanted: list[int]) -> Rows:
        rows = super()._chain(state, tokens, wanted)
        features = state.generation.features.read(_next(state), len(tokens))
        return replace(rows, reads={TARGET_FEATURES: features})

    def _level(self, state: State, nodes: Sequence[GrowingNode]) -> Rows:
        return reading_above(super()._level(state, nodes), nodes)

    def _kept(self, node: GrowingNode, count: int) -> list[int]:
        return []


def reading_above(rows: Rows, nodes: Sequence[GrowingNode]) -> Rows:
    """Returns rows of nodes of one parent with what the head gave for that."""
    above = nodes[0].parent
    assert above is not None, "no root is run"
    assert above.features is not None, "it was run"
    features = np.broadcast_to(above.features, (len(nodes), len(above.features)))
    return replace(rows, reads={OWN_FEATURES: features})


def _next(state: State) -> int:
    """Returns the position of the first token whose features the head has not read."""
    return state.first + state.sequence.length
