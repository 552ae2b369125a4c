"""What a target computes for a text: features for a head to read, and its likeliest tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgespec.bundle import FEATURES
from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Floats
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.sampling.truncation import likeliest_tokens

TOP = 64
"""Number of likeliest tokens that are kept for each row."""


@dataclass(frozen=True)
class Reading:
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
    """Reads texts with a model whose graph returns features.

    Args:
        model: the compiled target.
        vocabulary: number of tokens of the tokenizer; logits beyond are padding.
        rows: largest number of rows of a call.
    """

    def __init__(self, model: Model, vocabulary: int, rows: int) -> None:
        self._runner = Runner(model)
        self._vocabulary = vocabulary
        self._rows = rows

    def read(self, tokens: Sequence[int]) -> Reading:
        """Reads a text from its beginning.

        Raises:
            DeviceError: if a logit or feature is NaN or infinite.
        """
        self._runner.resume(())
        parts = []
        for results in self._runner.score(tokens, self._rows):
            features, logits = results[FEATURES], results["logits"][:, : self._vocabulary]
            ids, top = likeliest(logits, min(TOP, self._vocabulary))
            if not (np.isfinite(features).all() and np.isfinite(top).all()):
                raise DeviceError(
                    "the target computed NaN or infinity: use another device or a higher precision"
                )
            parts.append(Reading(features.copy(), ids, top))
        return Reading(
            np.concatenate([each.features for each in parts]),
            np.concatenate([each.top_ids for each in parts]),
            np.concatenate([each.top_logits for each in parts]),
        )


def likeliest(logits: Floats, count: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Returns the ids and logits of the `count` largest logits of each row, the largest first.

    Args:
        logits: [n, V] float32.
        count: number of tokens, at most V.
    """
    ids = likeliest_tokens(logits, logits.shape[1], count)
    return ids, np.take_along_axis(logits, ids, axis=1)
