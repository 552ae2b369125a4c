"""Candidates as a draft's graph returns them, without the graph."""

from __future__ import annotations

import numpy as np

from edgespec.runtime.drafters.acceptance import Candidates


def candidates_of(logits, count=None):
    """Returns the result of a draft's graph for logits [n, V]: top k and log of the sum of exp."""
    logits = np.atleast_2d(np.asarray(logits, dtype=np.float32))
    tokens = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    normalizers = np.logaddexp.reduce(logits.astype(np.float64), axis=1).astype(np.float32)
    return Candidates(tokens, np.take_along_axis(logits, tokens, axis=1), normalizers)
