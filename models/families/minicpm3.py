"""MiniCPM3."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.latent import Latent

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.sublayers import LatentAttention, Mlp


class MiniCpm3(Latent):
    """A model with latents, and factors of embeddings, sublayers and logits."""

    models = "MiniCPM3-4B"
    defaults = Latent.but(
        kv_lora_rank=256,
        q_lora_rank=768,
        qk_rope_head_dim=32,
        qk_nope_head_dim=64,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-5,
        rope_interleave=False,
        scale_emb=12,
        scale_depth=1.4,
        dim_model_base=256,
        tie_word_embeddings=True,
    )

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with the size of values, and factors that are null where they are 1."""
        hidden, heads = (fields.integer(each) for each in ("hidden_size", "num_attention_heads"))
        layers = fields.integer("num_hidden_layers")
        own = {
            "v_head_dim": fields.get("v_head_dim") or hidden // heads,
            "scale_depth": fields.get("scale_depth") or math.sqrt(layers),
            "dim_model_base": fields.get("dim_model_base") or hidden,
        }
        return super().usual(fields.changed(**own))

    def decoder(self) -> Decoder:
        """Returns the model's description; its last norm divides the logits."""
        fields = self.config.fields
        decoder = super().decoder()
        factor = fields.number("dim_model_base") / self.config.hidden_size
        return replace(
            decoder,
            embedding_scale=fields.number("scale_emb"),
            norm=replace(decoder.norm, factor=factor),
        )

    def attention(self, index: int) -> LatentAttention:
        """Returns the attention of a layer."""
        return replace(super().attention(index), output_factor=self._factor)

    def feed_forward(self, index: int) -> Mlp:
        """Returns the MLP of a layer."""
        return replace(self.mlp(index), output_factor=self._factor)

    @property
    def _factor(self) -> float:
        return self.config.fields.number("scale_depth") / math.sqrt(self.config.num_layers)
