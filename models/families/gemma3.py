"""Gemma 3 (text only), and EmbeddingGemma, whose rows see both ways."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.bundle.sublayers import ALL, DEFAULT_ROPE
from edgespec.models.families.gemma2 import Gemma2
from edgespec.models.layers.rope import LOCAL_ROPE, ropes_by_layer_type

if TYPE_CHECKING:
    from edgespec.models.layers.rope import Rope
    from edgespec.models.layers.sublayers import Attention


class Gemma3(Gemma2):
    """Gemma 2 with norms of heads instead of soft limits, and a RoPE of their own for windows."""

    defaults = Gemma2.but(
        # Published configs of models that also read pictures leave out these sizes.
        vocab_size=262_208,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        max_position_embeddings=131_072,
        sliding_window_pattern=6,
        rope_theta=1_000_000.0,
        rope_local_base_freq=10_000.0,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
    )
    norms_of_heads = ("q_norm", "k_norm")

    def ropes(self) -> dict[str, Rope]:
        """Returns a rotation table for layers without a window, and one for those with."""
        theta = self.config.fields.number("rope_local_base_freq")
        return ropes_by_layer_type(self.config.fields, self.config.head_dim, theta)

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        window = self.config.windows[index]
        rope = DEFAULT_ROPE if window is None else LOCAL_ROPE
        return replace(super().attention(index), rope=rope)

    def mask(self, index: int) -> str:
        """Returns the name of the mask of a layer; EmbeddingGemma's rows see both ways."""
        if not self.config.fields.get("use_bidirectional_attention"):
            return super().mask(index)
        window = self.config.windows[index]
        return ALL if window is None else f"around:{window // 2}"
