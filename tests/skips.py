"""A model to leave layers out of, and text to try that on."""

from __future__ import annotations

# Sharp enough that a draft is right now and then.
MODEL = {"architecture": "qwen3", "num_hidden_layers": 4, "tie_word_embeddings": True}
PROSE = "The cat sat on the mat and looked at the bird. " * 40
