"""OLMo 2."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.models.families.llama import Llama

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.layers import Attention, Mlp


class Olmo2(Llama):
    """Llama with norms after its sublayers instead of before, and norms over all heads."""

    defaults: ClassVar[Mapping[str, object]] = {
        **Llama.defaults,
        "rms_norm_eps": 1e-5,
        "eos_token_id": 50279,
    }

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        config, name = self.config, f"model.layers.{index}"
        heads, kv_heads = (n * config.head_dim for n in (config.heads, config.kv_heads))
        return replace(
            super().attention(index),
            norm=None,
            q_norm=self.norm(f"{name}.self_attn.q_norm", heads),
            k_norm=self.norm(f"{name}.self_attn.k_norm", kv_heads),
            post_norm=self.norm(f"{name}.post_attention_layernorm", config.hidden_size),
        )

    def mlp(self, index: int) -> Mlp:
        """Returns the MLP of a layer."""
        name = f"model.layers.{index}.post_feedforward_layernorm"
        post_norm = self.norm(name, self.config.hidden_size)
        return replace(super().mlp(index), norm=None, post_norm=post_norm)
