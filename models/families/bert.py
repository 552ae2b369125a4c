"""BERT, RoBERTa and XLM-RoBERTa: places are learned, and norms follow sums."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.bundle.sublayers import ALL
from edgespec.models.config import plain_activation_of
from edgespec.models.families.encoder import Encoder
from edgespec.models.layers.decoder import Scorer, TokenRows
from edgespec.models.layers.elements import LayerNorm, Linear
from edgespec.models.layers.sublayers import Attention, PlainMlp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.elements import Norm


class Bert(Encoder):
    """Describes a BERT checkpoint."""

    models = "BERT, and MiniLM, BGE, E5, GTE and others stored as BERT"
    defaults: ClassVar[Mapping[str, object]] = {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
    prefixes = ("bert.",)
    beside = ("pooler.", "cls.", "embeddings.position_ids")

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """See `Llama`: the first places of a table may stand for no token."""
        allowed: dict[str, tuple[object, ...]] = {
            "position_embedding_type": (None, "absolute"),
            "is_decoder": (None, False),
            "add_cross_attention": (None, False),
        }
        fields.only(allowed, "use a model with learned absolute places, which reads text alone")
        places = fields.integer("max_position_embeddings")
        return fields.changed(max_position_embeddings=places - cls.first_place(fields))

    @staticmethod
    def first_place(fields: ConfigFields) -> int:
        """Returns the row of the table of places that the first token of a text has."""
        return 0

    def decoder(self) -> Decoder:
        """Returns the model's description; the last layer's norm is that of all layers."""
        config = self.config
        first = self.first_place(config.fields)
        made = replace(
            super().decoder(),
            token_rows=TokenRows(
                "embeddings.position_embeddings.weight",
                (config.context_length + first, config.hidden_size),
                first,
                "embeddings.token_type_embeddings.weight",
                (config.fields.integer("type_vocab_size"), config.hidden_size),
                self.own_norm("embeddings.LayerNorm"),
            ),
        )
        return self.norm_at_end(made)

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        config = self.config
        name = f"encoder.layer.{index}.attention"
        hidden = config.hidden_size
        return Attention(
            norm=None,
            q=self.linear(f"{name}.self.query", hidden, hidden),
            k=self.linear(f"{name}.self.key", hidden, hidden),
            v=self.linear(f"{name}.self.value", hidden, hidden),
            o=self.linear(f"{name}.output.dense", hidden, hidden),
            heads=config.heads,
            kv_heads=config.heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            mask=ALL,
            rope="",
            sum_norm=self.own_norm(f"{name}.output.LayerNorm"),
        )

    def feed_forward(self, index: int) -> PlainMlp:
        """Returns the MLP of a layer."""
        config = self.config
        name = f"encoder.layer.{index}"
        hidden = config.hidden_size
        inner = config.intermediate_size
        return PlainMlp(
            norm=None,
            up=self.linear(f"{name}.intermediate.dense", hidden, inner),
            down=self.linear(f"{name}.output.dense", inner, hidden),
            activation=plain_activation_of(config.fields, self.activation_field),
            sum_norm=self.own_norm(f"{name}.output.LayerNorm"),
        )

    def scorer(self) -> Scorer:
        """See `Encoder`."""
        hidden = self.config.hidden_size
        return Scorer(
            out=self.linear("classifier", hidden, 1),
            dense=self.linear("pooler.dense", hidden, hidden),
        )

    def norm(self, name: str, size: int) -> Norm:
        """Returns the norm of that name."""
        return LayerNorm(f"{name}.weight", size, self.config.norm_eps, bias=f"{name}.bias")

    def linear(self, name: str, in_features: int, out_features: int) -> Linear:
        """Returns the projection of that name; each has a bias."""
        return Linear(f"{name}.weight", in_features, out_features, f"{name}.bias")


class Roberta(Bert):
    """BERT whose places are counted from behind the token that pads, and with another scorer."""

    models = "RoBERTa and XLM-RoBERTa, and BGE-M3, BGE-reranker and others stored so"
    defaults = Bert.but(
        vocab_size=50265, type_vocab_size=1, pad_token_id=1, max_position_embeddings=514
    )
    prefixes = ("roberta.",)
    beside = ("pooler.", "lm_head.", "embeddings.position_ids")

    @staticmethod
    def first_place(fields: ConfigFields) -> int:
        """See `Bert`."""
        return fields.integer("pad_token_id") + 1

    def scorer(self) -> Scorer:
        """See `Encoder`."""
        hidden = self.config.hidden_size
        return Scorer(
            out=self.linear("classifier.out_proj", hidden, 1),
            dense=self.linear("classifier.dense", hidden, hidden),
        )
