"""What a draft's graph returns, without the graph; and what a drafter makes of it, unlearned."""

from __future__ import annotations

import numpy as np

from edgespec.runtime.drafters.acceptance import Calibration
from edgespec.runtime.drafters.ranking import Candidates


class Trusting(Calibration):
    """Takes a source at its word for ever."""

    def observe(self, cell, accepted):
        pass


def candidates_of(logits, count=None):
    """What a draft's graph returns for rows of logits [n, V]: TopK and log of the sum of exp."""
    logits = np.atleast_2d(np.asarray(logits, dtype=np.float32))
    tokens = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    normalizers = np.logaddexp.reduce(logits.astype(np.float64), axis=1).astype(np.float32)
    return Candidates(tokens, np.take_along_axis(logits, tokens, axis=1), normalizers)
