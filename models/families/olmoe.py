"""OLMoE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.llama import Llama
from edgespec.models.families.mixture import mixture

if TYPE_CHECKING:
    from edgespec.models.layers.sublayers import Attention, Moe


class Olmoe(Llama):
    """Llama with norms over all heads, and a mixture of experts in every layer."""

    defaults = Llama.but(
        max_position_embeddings=4096,
        num_experts_per_tok=8,
        rms_norm_eps=1e-5,
        eos_token_id=50279,
    )
    norms_of_heads = ("q_norm", "k_norm")
    heads_together = True

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        fields = self.config.fields
        if fields.get("clip_qkv") is not None:
            raise fields.unsupported("clip_qkv", "use a model without clipped projections")
        return super().attention(index)

    def feed_forward(self, index: int) -> Moe:
        """Returns the mixture of experts of a layer."""
        return mixture(self.config, self.mlp(index), self.config.intermediate_size)
