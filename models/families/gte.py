"""GTE of 2024, in the form of transformers and in its own, `new`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from edgespec.models.families.nomic_bert import NomicBert
from edgespec.models.families.partial_rotation import split
from edgespec.models.formats.parts import Parts, TensorRows
from edgespec.models.layers.decoder import Scorer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource


class Gte(NomicBert):
    """Nomic's BERT with biases but of gate and up, and with a scorer."""

    models = "GTE v1.5 and multilingual in the form of transformers, Snowflake Arctic-embed-m v2.0"
    defaults = NomicBert.but(
        hidden_act="gelu",
        vocab_size=250_048,
        max_position_embeddings=8192,
        type_vocab_size=1,
        pad_token_id=1,
        rope_theta=160_000.0,
    )
    prefixes = ("new.", "gte.")
    renamed: ClassVar[Mapping[str, str]] = {
        r"^encoder\.layer\.": "layers.",
        r"\.attention\.": ".self_attn.",
        r"\.attn_ln\.": ".post_attention_layernorm.",
        r"\.mlp_ln\.": ".post_mlp_layernorm.",
    }
    fused = "layers.{}.self_attn.qkv_proj"
    labels = "classifier.weight"
    beside = ("pooler.", "lm_head.")

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """See `Llama`: frequencies that NTK scales are those of another base, all slower."""
        allowed: dict[str, tuple[object, ...]] = {
            "layer_norm_type": (None, "layer_norm"),
            "position_embedding_type": (None, "rope"),
            "logn_attention_scale": (None, False),
            "logn_attention_clip1": (None, False),
        }
        fields.only(allowed, "use GTE v1.5 or multilingual")
        scaling = fields.group("rope_scaling")
        if scaling.get("type") != "ntk":
            return fields
        scaling.only({"mixed_b": (None,)}, "use GTE v1.5 or multilingual")
        factor = scaling.number("factor")
        size = fields.integer("hidden_size") / fields.integer("num_attention_heads")
        return fields.changed(
            rope_theta=factor * fields.number("rope_theta"),
            rope_scaling={"type": "linear", "factor": factor ** (2 / size)},
        )

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights; files may have one tensor for up and gate, too."""
        parts = dict[str, TensorRows]()
        for index in range(self.config.num_layers):
            stored = f"{self.layers}.{index}.mlp.up_gate_proj.weight"
            mlp = self.mlp(index)
            parts |= split(stored, mlp.up, mlp.gate) if stored in tensors.names else {}
        return super().arranged(Parts(tensors, parts))

    def scorer(self) -> Scorer:
        """See `Encoder`."""
        hidden = self.config.hidden_size
        return Scorer(
            out=self.linear("classifier", hidden, 1),
            dense=self.linear("pooler.dense", hidden, hidden),
        )

    def has_bias(self, name: str) -> bool:
        """Returns whether the projection of that name has a bias."""
        return not name.endswith((".gate_proj", ".up_proj"))


class NewGte(Gte):
    """GTE as it is published, whose frequencies a config may scale."""

    models = "GTE v1.5 and multilingual as published, and their rerankers"
    defaults = Gte.but(rope_theta=10_000.0)
