"""Gemma 3 (text only)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.bundle.sublayers import DEFAULT_ROPE
from edgespec.models.families.llama import Llama
from edgespec.models.rope import Rope, rope_from_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.layers import Attention, Decoder, Mlp, Norm

_LOCAL = "local"
_ABSENT = ("final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention")


class Gemma3(Llama):
    """Llama with GELU, four norms per layer, and windows with their own RoPE in most layers."""

    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
    }
    activation_field = "hidden_activation"

    def decoder(self) -> Decoder:
        """Returns the model's description; its embedding is scaled."""
        for name in _ABSENT:  # fields of Gemma 2, and of models for text embeddings
            if self.config.fields.get(name):
                raise self.config.fields.unsupported(name, "Gemma 3 models for text have none")
        return replace(super().decoder(), embedding_scale=self.config.hidden_size**0.5)

    def ropes(self) -> dict[str, Rope]:
        """Returns a rotation table for layers without a window, and one for those with."""
        fields, head_dim = self.config.fields, self.config.head_dim
        local = {"rope_theta": fields.number("rope_local_base_freq"), "rope_scaling": None}
        windowed = replace(fields, values={**fields.values, **local})
        return {
            DEFAULT_ROPE: rope_from_config(fields, head_dim, "full_attention"),
            _LOCAL: rope_from_config(windowed, head_dim, "sliding_attention"),
        }

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer, with norms of its heads and of its output."""
        name, head_dim = f"model.layers.{index}", self.config.head_dim
        return replace(
            super().attention(index),
            scale=self.config.fields.number("query_pre_attn_scalar") ** -0.5,
            q_norm=self.norm(f"{name}.self_attn.q_norm", head_dim),
            k_norm=self.norm(f"{name}.self_attn.k_norm", head_dim),
            post_norm=self.norm(f"{name}.post_attention_layernorm", self.config.hidden_size),
            rope=DEFAULT_ROPE if self.config.windows[index] is None else _LOCAL,
        )

    def mlp(self, index: int) -> Mlp:
        """Returns the MLP of a layer, with a norm before and a norm after it."""
        name, hidden = f"model.layers.{index}", self.config.hidden_size
        return replace(
            super().mlp(index),
            norm=self.norm(f"{name}.pre_feedforward_layernorm", hidden),
            post_norm=self.norm(f"{name}.post_feedforward_layernorm", hidden),
        )

    def norm(self, name: str, size: int) -> Norm:
        """Returns the norm of that name; its stored weights are the difference to 1."""
        return replace(super().norm(name, size), offset=1.0)
