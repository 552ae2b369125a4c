"""Drafts by a model that predicts several tokens in one call (An et al., PARD, 2025)."""

from __future__ import annotations

from dataclasses import replace

from edgespec.runtime.drafters.combined import CombinedDrafter
from edgespec.runtime.drafters.growth import Ids, State
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.sequences.model import Model, Rows

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
