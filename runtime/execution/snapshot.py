"""Copies of what runners hold of a text, by which texts go on elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgespec.bundle.sublayers import CHUNK
from edgespec.runtime.arrays import Array, Floats


@dataclass(frozen=True)
class Snapshot:
    """A copy of what a runner holds of a text, or of a part of it, on the host.

    Attributes:
        tokens: tokens of the text.
        caches: rows of each group of layers in each stage, [layers, 2, KV, rows, hd] each; with a
            window these are the last ones.
        features: [n, F] features of the last positions; None if the model gives none.
        states: what recurrent layers of each stage hold, by name; empty if there are none.
    """

    tokens: Sequence[int]
    caches: Sequence[Array]
    features: Floats | None = None
    states: Sequence[Mapping[str, Array]] = ()

    def first(self, length: int) -> Snapshot:
        """Returns what it holds of the first `length` tokens; nothing if a state is of more."""
        over = len(self.tokens) - length
        if over <= 0:
            return self
        border = len(self.tokens) // CHUNK * CHUNK
        if self.states and length < border:
            length, over = 0, len(self.tokens)
        caches = [rows[:, :, :, : max(0, rows.shape[3] - over)] for rows in self.caches]
        features = (
            None if self.features is None else self.features[: max(0, len(self.features) - over)]
        )
        states = self.states if length else ()
        return Snapshot(self.tokens[:length], caches, features, states)
