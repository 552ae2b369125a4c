"""Drafts by a model, or a head, that predicts several tokens in one call.

PARD (An et al., 2025) and, of heads, P-EAGLE (2026).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgespec.bundle import TARGET_FEATURES
from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.combined import CombinedDrafter
from edgespec.runtime.drafters.growth import Ids, State
from edgespec.runtime.drafters.head import HeadDrafter
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.sequences.model import AFTER, Model, Rows

_MOST = 16  # tokens that one call predicts; models were trained for 8 to 12


class ParallelDrafter(CombinedDrafter, ModelDrafter):
    """Drafts with a model that was trained to read mask tokens.

    They follow the last token, whose row gives candidates for the first token to come; the first
    mask's row gives those for the second one, and so on.

    Args:
        model: the model.
        context_length: largest number of tokens that it can read.
        mask_token: the token of a mask.
        ids: see `TreeDrafter`.
    """

    name = "parallel"

    def __init__(
        self,
        model: Model,
        context_length: int,
        mask_token: int,
        ids: Ids | None = None,
    ) -> None:
        super().__init__(model, context_length, ids)
        self._mask = mask_token

    def _most(self) -> int:
        return _MOST

    def _asking(self, state: State, tokens: list[int], count: int) -> Rows:
        wanted = range(len(tokens) - 1, len(tokens) + count - 1)
        rows = self._chain(state, tokens + [self._mask] * (count - 1), list(wanted))
        return replace(rows, certain=len(tokens))


class ParallelHeadDrafter(CombinedDrafter, HeadDrafter):
    """Drafts with a head that was trained to read mask tokens behind the newest one.

    Args:
        model: the head, with a `HeadGraph`.
        context_length: largest number of rows that it can read.
        mask_token: the token of a mask.
        features: [F] what masks read in place of the target's features.
        most: number of tokens that it was trained to draft.
        ids: see `TreeDrafter`.
    """

    def __init__(
        self,
        model: Model,
        context_length: int,
        mask_token: int,
        features: Floats,
        most: int,
        ids: Ids | None = None,
    ) -> None:
        super().__init__(model, context_length, ids)
        self._mask = mask_token
        self._features = features
        self._largest = most

    def _most(self) -> int:
        return self._largest

    def _asking(self, state: State, tokens: list[int], count: int) -> Rows:
        rows = self._chain(state, tokens, [])
        read = len(tokens)
        masks = count - 1
        features = np.tile(self._features, (masks, 1))
        return replace(
            rows,
            tokens=[*tokens, *[self._mask] * masks],
            parents=[AFTER, *range(read + masks - 1)],
            wanted=list(range(read - 1, read + masks)),
            reads={TARGET_FEATURES: np.concatenate([rows.reads[TARGET_FEATURES], features])},
        )
