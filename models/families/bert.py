"""BERT, Jina's and RoBERTa: norms follow sums, and places are learned but of Jina's."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.bundle.sublayers import ALL
from edgespec.models.config import plain_activation_of
from edgespec.models.families.encoder import Encoder
from edgespec.models.families.partial_rotation import split
from edgespec.models.formats.parts import Parts, TensorRows
from edgespec.models.layers.decoder import Scorer, TokenRows
from edgespec.models.layers.elements import LayerNorm, Linear
from edgespec.models.layers.sublayers import Attention, Mlp, PlainMlp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.families.llama import Llama
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.elements import Norm

_QK_NORM = "use_qk_norm"  # which no file has: weights tell it
_QUERY_NORM = ".self.layer_norm_q"


class Bert(Encoder):
    """Describes a BERT checkpoint."""

    models = "BERT, and MiniLM, BGE, E5, GTE, Jina v2, its rerankers v1 and others stored as BERT"
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
    fused = "encoder.layer.{}.attention.self.Wqkv"
    labels = "classifier.weight"
    beside = ("pooler.", "cls.", "embeddings.position_ids")
    places: ClassVar[tuple[object, ...]] = (None, "absolute")

    @classmethod
    def of(cls, fields: ConfigFields) -> type[Llama]:
        """See `Llama`."""
        if fields.get("position_embedding_type") not in JinaBert.places:
            return cls
        return JinaCodeBert if fields.flag(_QK_NORM) else JinaBert

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """See `Llama`: the first places of a table may stand for no token."""
        allowed: dict[str, tuple[object, ...]] = {
            "position_embedding_type": cls.places,
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

    def feed_forward(self, index: int) -> Mlp | PlainMlp:
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


def without_parts(decoder: Decoder) -> Decoder:
    """Returns the description of a model that does not tell the parts of a text apart."""
    assert decoder.token_rows is not None
    return replace(decoder, token_rows=replace(decoder.token_rows, segments="", parts=(0, 0)))


class JinaBert(Bert):
    """BERT whose scores fall with distance in place of learned places, with a gate in its MLP."""

    renamed: ClassVar[Mapping[str, str]] = {
        r"\.mlp\.up_gated_layer\.": ".mlp.gated_layers.",
        r"\.mlp\.down_layer\.": ".mlp.wo.",
        r"\.layer_norm_2\.": ".mlp.layernorm.",
    }
    places = ("alibi",)

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """See `Llama`."""
        fields.only({"feed_forward_type": ("geglu",)}, "use a model with geglu")
        return super().usual(fields)

    @classmethod
    def completed(cls, fields: ConfigFields, tensors: TensorSource, embeds: bool) -> ConfigFields:
        """See `Encoder`; also whether queries and keys are normalized."""
        normal = any(f"{_QUERY_NORM}." in name for name in tensors.names)
        return super().completed(fields, tensors, embeds).changed(**{_QK_NORM: normal})

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        made = super().decoder()
        assert made.token_rows is not None
        return replace(made, token_rows=replace(made.token_rows, positions="", places=(0, 0)))

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights; files have one tensor for gate and up, the first GGUF files two."""
        parts = dict[str, TensorRows]()
        for index in range(self.config.num_layers):
            mlp = self.feed_forward(index)
            stored = f"encoder.layer.{index}.mlp.gated_layers.weight"
            apart = mlp.gate.weight in tensors.names
            parts |= split(stored, *((mlp.up,) if apart else self.halves(mlp)))
        return Parts(super().arranged(tensors), parts)

    def halves(self, mlp: Mlp) -> tuple[Linear, Linear]:
        """Returns the upper half of the tensor of gate and up, and the lower one."""
        return mlp.gate, mlp.up

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        return replace(super().attention(index), slopes=_slopes(self.config.heads))

    def feed_forward(self, index: int) -> Mlp:
        """Returns the MLP of a layer."""
        config = self.config
        name = f"encoder.layer.{index}.mlp"
        sizes = config.hidden_size, config.intermediate_size
        return Mlp(
            norm=None,
            gate=Linear(f"{name}.gated_layers_w.weight", *sizes),
            up=Linear(f"{name}.gated_layers_v.weight", *sizes),
            down=self.linear(f"{name}.wo", *sizes[::-1]),
            activation="gelu",
            sum_norm=self.own_norm(f"{name}.layernorm"),
        )


class JinaCodeBert(JinaBert):
    """Jina's model for code: queries and keys are normalized, and attention is added twice."""

    def halves(self, mlp: Mlp) -> tuple[Linear, Linear]:
        """See `JinaBert`."""
        return mlp.up, mlp.gate

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        name = f"encoder.layer.{index}"
        return replace(
            super().attention(index),
            q_norm=self.own_norm(f"{name}.attention{_QUERY_NORM}"),
            k_norm=self.own_norm(f"{name}.attention.self.layer_norm_k"),
            second_norm=self.own_norm(f"{name}.layer_norm_1"),
        )


def _slopes(heads: int) -> tuple[float, ...]:
    """Returns ALiBi's slopes: 2^-8/n, 2^-16/n, ... of n heads, and those between for the rest."""
    most = 2 ** int(math.log2(heads))
    usual = tuple(2 ** (-8 * (head + 1) / most) for head in range(most))
    rest = tuple(2 ** (-8 * (head + 0.5) / most) for head in range(heads - most))
    return usual + rest


class Roberta(Bert):
    """BERT whose places are counted from behind the token that pads, and with another scorer."""

    models = "RoBERTa and XLM-RoBERTa, and BGE-M3, BGE-reranker, Jina reranker v2, others stored so"
    defaults = Bert.but(
        vocab_size=50265, type_vocab_size=1, pad_token_id=1, max_position_embeddings=514
    )
    prefixes = ("roberta.",)
    # As Jina's implementation of XLM-RoBERTa has them, `xlm-roberta-flash-implementation`.
    renamed: ClassVar[Mapping[str, str]] = {
        r"^emb_ln\.": "embeddings.LayerNorm.",
        r"^encoder\.layers\.": "encoder.layer.",
        r"\.mixer\.Wqkv\.": ".attention.self.Wqkv.",
        r"\.mixer\.out_proj\.": ".attention.output.dense.",
        r"\.norm1\.": ".attention.output.LayerNorm.",
        r"\.mlp\.fc1\.": ".intermediate.dense.",
        r"\.mlp\.fc2\.": ".output.dense.",
        r"\.norm2\.": ".output.LayerNorm.",
    }
    labels = "classifier.out_proj.weight"
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
