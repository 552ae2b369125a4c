"""DistilBERT: BERT under other names, with nothing that tells parts of a text apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from edgespec.models.families.bert import Bert, without_parts
from edgespec.models.layers.decoder import Scorer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder

# What fields of its configs are called elsewhere.
_FIELDS: Mapping[str, str] = {
    "dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
}


class DistilBert(Bert):
    """Describes a DistilBERT checkpoint."""

    models = "DistilBERT, and embedding models and rerankers stored so"
    defaults = Bert.but(num_hidden_layers=6)
    prefixes = ("distilbert.",)
    renamed: ClassVar[Mapping[str, str]] = {
        r"^transformer\.layer\.": "encoder.layer.",
        r"\.q_lin\.": ".self.query.",
        r"\.k_lin\.": ".self.key.",
        r"\.v_lin\.": ".self.value.",
        r"\.out_lin\.": ".output.dense.",
        r"\.sa_layer_norm\.": ".attention.output.LayerNorm.",
        r"\.ffn\.lin1\.": ".intermediate.dense.",
        r"\.ffn\.lin2\.": ".output.dense.",
        r"\.output_layer_norm\.": ".output.LayerNorm.",
    }
    beside = ("vocab_", "pre_classifier.", "embeddings.position_ids")

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """See `Llama`."""
        return super().usual(fields.under(_FIELDS))

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        return without_parts(super().decoder())

    def scorer(self) -> Scorer:
        """See `Encoder`."""
        hidden = self.config.hidden_size
        return Scorer(
            out=self.linear("classifier", hidden, 1),
            dense=self.linear("pre_classifier", hidden, hidden),
            activation="relu",
        )
