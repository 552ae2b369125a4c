"""MiniCPM, MiniCPM4 and 4.1 without experts and sparse attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgespec.models.families.granite import Granite

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder


class MiniCpm(Granite):
    """Granite with factors under other names."""

    models = "MiniCPM 1B and 2B, MiniCPM4 0.5B and 8B, MiniCPM4.1 8B, with standard attention"
    defaults = Granite.but(
        scale_emb=1,
        scale_depth=1,
        dim_model_base=1,
        tie_word_embeddings=True,
    )

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with Granite's names of factors."""
        hidden, heads = (fields.integer(each) for each in ("hidden_size", "num_attention_heads"))
        layers = fields.integer("num_hidden_layers")
        return fields.changed(
            embedding_multiplier=fields.number("scale_emb"),
            residual_multiplier=fields.number("scale_depth") / math.sqrt(layers),
            logits_scaling=hidden / fields.number("dim_model_base"),
            attention_multiplier=fields.integer("head_dim", hidden // heads) ** -0.5,
        )

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        remedy = "use a model without experts"
        self.config.fields.only({"num_experts": (None, 0)}, remedy)
        return super().decoder()
