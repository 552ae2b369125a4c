"""Models and heads that predict several tokens in one call, by masks behind the newest token.

PARD (An et al., 2025) and, of heads, P-EAGLE (2026).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgespec.bundle import TARGET_FEATURES
from edgespec.runtime.arrays import Floats
from edgespec.runtime.drafters.block import Query
from edgespec.runtime.drafters.reader import DraftReader, DraftSequence
from edgespec.runtime.sequences.model import AFTER, Rows

_MOST = 16  # tokens that one call of a model predicts; they were trained for 8 to 12


class MaskQuery(Query):
    """Asks by mask tokens behind the last token.

    The last token's row gives candidates for the first token to come; the first mask's row gives
    those for the second one, and so on.

    Args:
        mask_token: the token of a mask.
    """

    most = _MOST

    def __init__(self, mask_token: int) -> None:
        self._mask = mask_token

    def rows(
        self, reader: DraftReader, draft: DraftSequence, tokens: list[int], count: int
    ) -> Rows:
        """See `Query`."""
        wanted = range(len(tokens) - 1, len(tokens) + count - 1)
        rows = reader.chain(draft, tokens + [self._mask] * (count - 1), list(wanted))
        return replace(rows, certain=len(tokens))


class HeadMaskQuery(Query):
    """Asks a head by mask tokens behind the newest one.

    Args:
        mask_token: the token of a mask.
        features: [F] what masks read in place of the target's features.
        most: number of tokens that the head was trained to draft.
    """

    def __init__(self, mask_token: int, features: Floats, most: int) -> None:
        self.most = most
        self._mask = mask_token
        self._features = features

    def rows(
        self, reader: DraftReader, draft: DraftSequence, tokens: list[int], count: int
    ) -> Rows:
        """See `Query`."""
        rows = reader.chain(draft, tokens, [])
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
