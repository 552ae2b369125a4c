"""OLMoE."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.models.families.llama import Llama
from edgespec.models.families.mixture import mixture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.layers import Attention, Moe


class Olmoe(Llama):
    """Llama with norms over all heads, and a mixture of experts in every layer."""

    defaults: ClassVar[Mapping[str, object]] = {
        **Llama.defaults,
        "max_position_embeddings": 4096,
        "num_experts_per_tok": 8,
        "rms_norm_eps": 1e-5,
        "eos_token_id": 50279,
    }

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        config, name = self.config, f"model.layers.{index}.self_attn"
        if config.fields.get("clip_qkv") is not None:
            raise config.fields.unsupported("clip_qkv", "use a model without clipped projections")
        heads, kv_heads = (n * config.head_dim for n in (config.heads, config.kv_heads))
        return replace(
            super().attention(index),
            q_norm=self.norm(f"{name}.q_norm", heads),
            k_norm=self.norm(f"{name}.k_norm", kv_heads),
        )

    def feed_forward(self, index: int) -> Moe:
        """Returns the mixture of experts of a layer."""
        return mixture(self.config, self.mlp(index), self.config.intermediate_size)
