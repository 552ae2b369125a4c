"""NVIDIA's embedding models made of Llama, whose rows see all of their text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.encoder import Encoder

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder


class LlamaBidirec(Encoder):
    """Describes a checkpoint of Llama that makes embeddings, as published."""

    models = "llama-embed-nemotron-8b, llama-nemotron-embed-1b (llama-nemoretriever), of text alone"
    embedding = "embed_tokens.weight"
    beside = ("lm_head.",)

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """See `Llama`."""
        fields.only({"pooling": (None, "avg")}, "use a model that pools by the mean")
        return fields

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        return replace(super().decoder(), norm=self.own_norm("norm"))
