"""Granite 3."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.llama import Llama

if TYPE_CHECKING:
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.sublayers import Attention, Mlp


class Granite(Llama):
    """Llama with factors of embeddings, attention scores, sublayers and logits."""

    defaults = Llama.but(
        embedding_multiplier=1.0,
        attention_multiplier=1.0,
        residual_multiplier=1.0,
        logits_scaling=1.0,
    )

    def decoder(self) -> Decoder:
        """Returns the model's description; its last norm divides the logits."""
        fields = self.config.fields
        decoder = super().decoder()
        return replace(
            decoder,
            embedding_scale=fields.number("embedding_multiplier"),
            norm=replace(decoder.norm, factor=1 / fields.number("logits_scaling")),
        )

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        fields = self.config.fields
        return replace(
            super().attention(index),
            scale=fields.number("attention_multiplier"),
            output_factor=fields.number("residual_multiplier"),
        )

    def mlp(self, index: int) -> Mlp:
        """Returns the MLP of a layer."""
        factor = self.config.fields.number("residual_multiplier")
        return replace(super().mlp(index), output_factor=factor)
