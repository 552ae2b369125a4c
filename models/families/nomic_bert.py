"""Nomic's BERT: rotated places, gated MLPs without biases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.models.families.bert import Bert
from edgespec.models.families.encoder import Encoder
from edgespec.models.layers.decoder import TokenRows
from edgespec.models.layers.elements import LayerNorm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.elements import Norm
    from edgespec.models.layers.sublayers import Attention, Mlp

# What fields of published configs are called elsewhere.
_FIELDS: Mapping[str, str] = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}


class NomicBert(Encoder):
    """Describes a checkpoint of nomic-embed-text, in its own form or that of transformers."""

    models = "nomic-embed-text v1 and v1.5"
    defaults = Bert.but(
        hidden_act="silu", max_position_embeddings=2048, rope_theta=1000.0, vocab_size=30528
    )
    prefixes: ClassVar[tuple[str, ...]] = ("nomic_bert.", "bert.")
    fused = "layers.{}.self_attn.Wqkv"
    beside = ("pooler.", "cls.")
    renamed: ClassVar[Mapping[str, str]] = {
        r"^encoder\.": "",
        r"^emb_ln\.": "embeddings.LayerNorm.",
        r"\.attn\.Wqkv\.": ".self_attn.Wqkv.",
        r"\.attn\.out_proj\.": ".self_attn.o_proj.",
        r"\.fc11\.": ".up_proj.",
        r"\.fc12\.": ".gate_proj.",
        r"\.fc2\.": ".down_proj.",
        r"\.norm1\.": ".post_attention_layernorm.",
        r"\.norm2\.": ".post_mlp_layernorm.",
    }

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """See `Llama`."""
        allowed: dict[str, tuple[object, ...]] = {
            "activation_function": (None, "swiglu"),
            "num_experts": (None, 0),
            "prenorm": (None, False),
            "qkv_proj_bias": (None, False),
            "mlp_fc1_bias": (None, False),
            "mlp_fc2_bias": (None, False),
            "rotary_emb_fraction": (None, 1, 1.0),
            "rotary_emb_interleaved": (None, False),
            "rotary_scaling_factor": (None,),
        }
        fields.only(allowed, "use nomic-embed-text v1 or v1.5")
        return fields.under(_FIELDS)

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        return self.norm_at_end(replace(super().decoder(), token_rows=self.token_rows()))

    def token_rows(self) -> TokenRows:
        """Returns what becomes of embeddings; some models do not tell parts of a text apart."""
        config = self.config
        norm = self.own_norm("embeddings.LayerNorm")
        if config.fields.get("type_vocab_size") == 0:
            return TokenRows(norm=norm)
        return TokenRows(
            segments="embeddings.token_type_embeddings.weight",
            parts=(config.fields.integer("type_vocab_size"), config.hidden_size),
            norm=norm,
        )

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        norm = self.own_norm(f"{self.layers}.{index}.post_attention_layernorm")
        return replace(super().attention(index), norm=None, sum_norm=norm)

    def mlp(self, index: int) -> Mlp:
        """Returns the MLP of a layer."""
        norm = self.own_norm(f"{self.layers}.{index}.post_mlp_layernorm")
        return replace(super().mlp(index), norm=None, sum_norm=norm)

    def norm(self, name: str, size: int) -> Norm:
        """Returns the norm of that name."""
        return LayerNorm(f"{name}.weight", size, self.config.norm_eps, bias=f"{name}.bias")
