"""The quality of an embedding model's bundle: how near its rows are to the original's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.bundle import LAST_HIDDEN
from edgespec.runtime.arrays import Floats
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner

_ROWS = 32  # rows of a pass
_CLOSE = 0.98
_TINY = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class RowQuality:
    """Quality of a bundle relative to the original model, on text that nothing was fitted to.

    Attributes:
        rows: number of compared rows, one for each token.
        cosine: mean cosine of the bundle's and the original's row of a token.
        engine: engine that the bundle ran on.
    """

    rows: int
    cosine: float
    engine: str

    def __str__(self) -> str:
        word = (
            "close to the original"
            if self.cosine >= _CLOSE
            else "far from the original: use a higher precision, such as --precision int8"
        )
        where = f"{self.rows} tokens on {self.engine}"
        return f"quality: cosine {self.cosine:.4f} of rows, {word} ({where})"


def row_quality(
    model: Model, texts: Sequence[Sequence[int]], read: Floats, left_out: int
) -> RowQuality:
    """Compares a bundle's rows with the original's.

    Args:
        model: the bundle's target.
        texts: token ids of texts, all of the same length.
        read: [texts * length, hidden_size], the original's rows behind its last norm.
        left_out: number of rows at the beginning of each text that are not compared.
    """
    cosines = list[Floats]()
    for text, rows in zip(texts, np.split(read, len(texts)), strict=True):
        runner = Runner(model)
        scored = runner.score(text, min(_ROWS, model.shapes.rows[-1]))
        found = np.concatenate([each[LAST_HIDDEN].copy() for each in scored])
        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(rows, axis=1)
        cosines.append(((found * rows).sum(axis=1) / np.maximum(lengths, _TINY))[left_out:])
    every = np.concatenate(cosines)
    return RowQuality(len(every), float(every.mean()), model.device)
