"""What a target computes for a text: features for a head to read, and its likeliest tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Floats
from edgespec.runtime.sampling.truncation import likeliest_tokens
from edgespec.runtime.sequences.model import AFTER, Model, Rows

TOP = 64
"""Number of likeliest tokens that are kept for each row."""

_ROWS = 64  # of a pass


@dataclass(frozen=True)
class TargetRows:
    """The rows of a text.

    Attributes:
        features: [n, F] float32, the rows that enter the tapped layers.
        top_ids: [n, K] int64, the target's likeliest next tokens, the likeliest first.
        top_logits: [n, K] float32, their logits.
    """

    features: Floats
    top_ids: npt.NDArray[np.int64]
    top_logits: Floats


class TargetReader:
    """Reads texts with a model whose passes give features.

    Args:
        model: the target.
        vocabulary: number of tokens of the tokenizer; logits beyond are padding.
        rows: largest number of rows of a pass.
    """

    def __init__(self, model: Model, vocabulary: int, rows: int = _ROWS) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._rows = rows

    def read(self, tokens: Sequence[int]) -> TargetRows:
        """Reads a text from its beginning.

        Raises:
            DeviceError: if a logit or feature is NaN or infinite.
        """
        sequence = self._model.sequence(list(tokens))
        parts = []
        top = min(TOP, self._vocabulary)
        try:
            while part := sequence.unread[: self._rows]:
                count = len(part)
                rows = Rows(sequence, part, [AFTER, *range(count - 1)], list(range(count)))
                [logits] = self._model.forward([rows])
                rows.accept(range(count))
                ids = likeliest_tokens(logits, self._vocabulary, top)
                chosen = np.take_along_axis(logits, ids, axis=1)
                assert rows.features is not None, "the model was loaded with them"
                if not (np.isfinite(rows.features).all() and np.isfinite(chosen).all()):
                    raise DeviceError(
                        "the target computed NaN or infinity: use another device or a higher "
                        "precision"
                    )
                parts.append((rows.features, ids, chosen))
        finally:
            sequence.free()
        return TargetRows(*(np.concatenate(each) for each in zip(*parts, strict=True)))
