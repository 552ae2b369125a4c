"""Gemma 2."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.llama import Llama

if TYPE_CHECKING:
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.elements import Norm
    from edgespec.models.layers.sublayers import Attention


class Gemma2(Llama):
    """Llama with GELU, four norms per layer, windows in every other layer, and soft limits."""

    defaults = Llama.but(
        hidden_activation="gelu_pytorch_tanh",
        max_position_embeddings=8192,
        num_key_value_heads=4,
        head_dim=256,
        query_pre_attn_scalar=256,
        sliding_window=4096,
        sliding_window_pattern=2,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        tie_word_embeddings=True,
        eos_token_id=1,
    )
    activation_field = "hidden_activation"
    norms_before = ("input_layernorm", "pre_feedforward_layernorm")
    norms_behind = ("post_attention_layernorm", "post_feedforward_layernorm")

    def decoder(self) -> Decoder:
        """Returns the model's description; its embedding is scaled."""
        return replace(
            super().decoder(),
            embedding_scale=self.config.hidden_size**0.5,
            logit_softcap=self.limit("final_logit_softcapping"),
        )

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        return replace(
            super().attention(index),
            scale=self.config.fields.number("query_pre_attn_scalar") ** -0.5,
            softcap=self.limit("attn_logit_softcapping"),
        )

    def norm(self, name: str, size: int) -> Norm:
        """Returns the norm of that name; its stored weights are the difference to 1."""
        return replace(super().norm(name, size), offset=1.0)

    def limit(self, name: str) -> float | None:
        """Returns the soft limit that a field names, None if it is null."""
        fields = self.config.fields
        return None if fields.get(name) is None else fields.number(name)
