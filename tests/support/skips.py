"""A model to skip layers of, text for it, and made-up costs."""

from __future__ import annotations

import numpy as np

from edgespec.bundle.sublayers import Sublayers
from edgespec.export.skipping.costs import PassCosts

# Sharp enough that a draft is right now and then.
MODEL = {"architecture": "qwen3", "num_hidden_layers": 4, "tie_word_embeddings": True}
PROSE = "The cat sat on the mat and looked at the bird. " * 40

ROWS = (1, 2, 4, 8, 16)
GROWTH = np.array([1, 1.05, 1.2, 1.5, 2.5])
CALL, HOST = 2e-5, 1e-4


def costs_of(layers):
    """Costs where an MLP takes as long as two attentions, and the head as long as three."""
    one = np.append(np.tile([1.0, 2.0], layers), 3.0) * 1e-3
    return PassCosts(ROWS, Sublayers.pairs(layers), np.outer(GROWTH, one), CALL, HOST)
