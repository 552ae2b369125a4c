"""HyperCLOVA X."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.granite import Granite

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder


class HyperClovaX(Granite):
    """Granite 3 with norms of what attention and MLP give, and logits that are multiplied."""

    models = "HyperCLOVA X SEED Think 14B"
    defaults = Granite.but(attention_multiplier=None, use_post_norm=True)

    norms_behind = ("post_norm1", "post_norm2")

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with the factor of scores, which is Llama's where it is null."""
        heads = fields.integer("num_attention_heads")
        size = fields.integer("head_dim", max(fields.integer("hidden_size") // heads, 1))
        factor = fields.number("attention_multiplier", size**-0.5)
        return fields.changed(attention_multiplier=factor)

    def decoder(self) -> Decoder:
        """Returns the model's description; its last norm multiplies the logits."""
        fields = self.config.fields
        fields.only({"use_post_norm": (True,)}, "use a model that has these norms")
        decoder = super().decoder()
        factor = fields.number("logits_scaling")
        return replace(decoder, norm=replace(decoder.norm, factor=factor))
