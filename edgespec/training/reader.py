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

TOP = 64
"""Number of likeliest tokens that are kept for each row."""

_BLOCK = 64  # logits of a block; the likeliest tokens are in the blocks with the largest maxima


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
    rows, width = logits.shape
    blocks = width // _BLOCK
    columns = np.broadcast_to(np.arange(width), logits.shape)
    if blocks > 2 * count:
        peaks = logits[:, : blocks * _BLOCK].reshape(rows, blocks, _BLOCK).max(axis=2)
        best = _largest(peaks, count)
        columns = (best[:, :, None] * _BLOCK + np.arange(_BLOCK)).reshape(rows, -1)
        rest = np.arange(blocks * _BLOCK, width)
        columns = np.concatenate([columns, np.broadcast_to(rest, (rows, len(rest)))], axis=1)
    found = np.take_along_axis(logits, columns, axis=1)
    some = _largest(found, count)
    ranks = np.argsort(-np.take_along_axis(found, some, axis=1), axis=1, kind="stable")
    places = np.take_along_axis(some, ranks, axis=1)
    return np.take_along_axis(columns, places, axis=1), np.take_along_axis(found, places, axis=1)


def _largest(values: Floats, count: int) -> npt.NDArray[np.int64]:
    """Returns the places of the largest values of each row, ascending."""
    if count >= values.shape[1]:
        return np.broadcast_to(np.arange(values.shape[1]), values.shape).copy()
    return np.sort(np.argpartition(-values, count - 1, axis=1)[:, :count], axis=1)
