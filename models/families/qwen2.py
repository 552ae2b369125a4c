"""Qwen2 and Qwen2.5."""

from __future__ import annotations

from edgespec.models.families.llama import QKV, Llama


class Qwen2(Llama):
    """Llama with biases on the query, key and value projections."""

    models = "Qwen2, Qwen2.5, Qwen2.5-Coder"
    published = "Qwen2.5-Coder 0.5B, 1.5B"
    defaults = Llama.but(
        max_position_embeddings=32768,
        num_key_value_heads=32,
        use_sliding_window=False,
        max_window_layers=28,
        sliding_window=4096,
        eos_token_id=None,
    )

    def has_bias(self, name: str) -> bool:
        """Returns whether a projection has a bias; the config has no option for it."""
        return name.endswith(QKV)
