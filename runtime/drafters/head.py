"""Drafts by a head, which reads hidden rows of the target (Li et al., EAGLE-3, 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edgespec.bundle import OWN_FEATURES, TARGET_FEATURES
from edgespec.runtime.arrays import Array, Floats, Ids
from edgespec.runtime.drafters.reader import DraftReader, DraftSequence
from edgespec.runtime.sequences.model import Graph, Model, Rows
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


class HeadReader(DraftReader):
    """Reads with a head that was trained for the model, or came with it (MTP: DeepSeek-AI, 2024).

    A row of the head reads the features of a token and the token behind it, so a sequence of n
    tokens, the last of which the target has not read, gives n - 1 rows. A row of a level reads what
    the head gave for the row above instead; once such rows are the sequence's, they are run again
    with the target's features. The head's sequence begins where there are features, and anew where
    it has more rows than the head was trained for.

    Args:
        model: the head, with a `HeadGraph`, or a `BlockGraph`.
        context_length: largest number of rows that it can read.
        ids: see `DraftReader`.

    Attributes:
        context_length: see above.
    """

    def __init__(self, model: Model, context_length: int, ids: Ids | None = None) -> None:
        super().__init__(model, ids)
        self.context_length = context_length

    def begin(self, generation: Generation) -> DraftSequence:
        """See `DraftReader`. Tokens are those of the generation from `first` + 1 on."""
        return DraftSequence(generation, self.model.sequence([]))

    def share(self, draft: DraftSequence) -> None:
        """See `DraftReader`."""
        if not draft.first + draft.sequence.length:
            draft.sequence.tokens = draft.generation.sequence.keys[1:]
            self.model.prefixes.extend(draft.sequence, len(draft.sequence.tokens) - 1)

    def leave(self, draft: DraftSequence, ended: bool) -> None:
        """See `DraftReader`."""
        if not draft.first:  # else its rows lack what is before them
            draft.sequence.tokens = draft.generation.sequence.keys[1:]
            self.model.prefixes.add(draft.sequence)

    def make_room(self, draft: DraftSequence, depth: int) -> bool:
        """See `DraftReader`."""
        self.share(draft)  # of what sequences share with others there are no features
        end = len(draft.generation.tokens) - 1
        known = draft.generation.features.start
        full = end - draft.first + depth > self.context_length
        if full or _next(draft) < known:
            draft.sequence.cut(0)
            draft.first = max(known, end - self.context_length // 2)
        return end - draft.first + depth <= self.context_length

    def unread(self, draft: DraftSequence) -> list[int]:
        """See `DraftReader`."""
        return draft.generation.tokens[_next(draft) + 1 :]

    def chain(self, draft: DraftSequence, tokens: list[int], wanted: list[int]) -> Rows:
        """See `DraftReader`."""
        rows = super().chain(draft, tokens, wanted)
        features = draft.generation.features.read(_next(draft), len(tokens))
        return replace(rows, reads={TARGET_FEATURES: features})

    def level(
        self, draft: DraftSequence, tokens: list[int], slots: list[int], features: Floats | None
    ) -> Rows:
        """See `DraftReader`."""
        return reading_above(super().level(draft, tokens, slots, features), features)

    def kept(self, slots: list[int], count: int) -> list[int]:
        """See `DraftReader`. None are: they have read what the head gave, not the target."""
        return []


def reading_above(rows: Rows, features: Floats | None) -> Rows:
    """Returns rows that read what the head gave for the row above them, [F]."""
    assert features is not None, "it was run"
    return replace(
        rows, reads={OWN_FEATURES: np.broadcast_to(features, (len(rows.tokens), len(features)))}
    )


def _next(draft: DraftSequence) -> int:
    """Returns the position of the first token whose features the head has not read."""
    return draft.first + draft.sequence.length
