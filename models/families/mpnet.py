"""MPNet: RoBERTa with learned numbers by distance on its scores, and without parts of a text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.models.families.bert import Roberta, without_parts
from edgespec.models.layers.distances import BUCKETS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.sublayers import Attention


class MpNet(Roberta):
    """Describes an MPNet checkpoint."""

    models = "MPNet, and all-mpnet-base-v2, multi-qa-mpnet and others stored so"
    defaults = Roberta.but(vocab_size=30527, max_position_embeddings=512)
    prefixes = ("mpnet.",)
    renamed: ClassVar[Mapping[str, str]] = {
        r"\.attention\.attn\.q\.": ".attention.self.query.",
        r"\.attention\.attn\.k\.": ".attention.self.key.",
        r"\.attention\.attn\.v\.": ".attention.self.value.",
        r"\.attention\.attn\.o\.": ".attention.output.dense.",
        r"\.attention\.LayerNorm\.": ".attention.output.LayerNorm.",
    }

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """See `Llama`."""
        name = "relative_attention_num_buckets"
        fields.only({name: (None, BUCKETS)}, f"use a model with {BUCKETS}")
        return super().usual(fields)

    @staticmethod
    def first_place(fields: ConfigFields) -> int:
        """See `Bert`: whatever token pads, as in transformers."""
        return 2

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        return without_parts(super().decoder())

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        nearness = "encoder.relative_attention_bias.weight"
        return replace(super().attention(index), nearness=nearness)
