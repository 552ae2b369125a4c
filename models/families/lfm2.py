"""LFM2 (Liquid AI): short convolutions in most layers, attention in the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.llama import Llama
from edgespec.models.layers.elements import Convolution
from edgespec.models.layers.recurrent import ShortConvolution
from edgespec.models.layers.sublayers import Mlp

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.sublayers import Attention, Sublayer

_CONVOLUTION = "conv"


class Lfm2(Llama):
    """Llama with normalized heads, other names, and convolutions instead of most attentions."""

    models = "LFM2 350M, 700M, 1.2B and 2.6B, LFM2.5"
    defaults = Llama.but(
        max_position_embeddings=128_000,
        norm_eps=1e-5,
        num_key_value_heads=8,
        rope_theta=1_000_000.0,
        conv_L_cache=3,
        block_multiple_of=256,
        block_ffn_dim_multiplier=1.0,
        block_auto_adjust_ff_dim=True,
        tie_word_embeddings=True,
    )
    norms_before = ("operator_norm", "ffn_norm")
    norms_of_heads = ("q_layernorm", "k_layernorm")

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config under the names of Llama's, with the MLP's width and the layers."""
        values = {**fields.values, "rms_norm_eps": fields.number("norm_eps")}
        if fields.get("tie_embedding") is not None:
            values["tie_word_embeddings"] = fields.flag("tie_embedding")
        width = fields.integer("block_ff_dim", fields.integer("intermediate_size"))
        if fields.flag("block_auto_adjust_ff_dim"):
            multiple = fields.integer("block_multiple_of")
            width = int(fields.number("block_ffn_dim_multiplier") * int(2 * width / 3))
            width = multiple * -(-width // multiple)
        values["intermediate_size"] = width
        if fields.get("layer_types") is None:
            layers = range(fields.integer("num_hidden_layers"))
            attentions = fields.get("full_attn_idxs")
            found = attentions if isinstance(attentions, list) else list(layers)
            values["layer_types"] = [
                "full_attention" if index in found else _CONVOLUTION for index in layers
            ]
        return replace(fields, values=values)

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        if self.config.fields.flag("conv_bias"):
            raise self.config.fields.unsupported("conv_bias", "use a model without biases")
        norm = self.norm("model.embedding_norm", self.config.hidden_size)
        return replace(super().decoder(), norm=norm)

    def mixer(self, index: int) -> Sublayer:
        """Returns the attention or the convolution of a layer."""
        if index not in self.config.recurrent:
            return self.attention(index)
        name = f"model.layers.{index}"
        hidden = self.config.hidden_size
        size = self.config.fields.integer("conv_L_cache")
        return ShortConvolution(
            norm=self.norm(f"{name}.operator_norm", hidden),
            inner=self.linear(f"{name}.conv.in_proj", hidden, 3 * hidden),
            convolution=Convolution(f"{name}.conv.conv.weight", hidden, size),
            out=self.linear(f"{name}.conv.out_proj", hidden, hidden),
        )

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        attention = super().attention(index)
        name = f"model.layers.{index}.self_attn.out_proj"
        inner = attention.o.in_features
        hidden = attention.o.out_features
        return replace(attention, o=self.linear(name, inner, hidden))

    def mlp(self, index: int) -> Mlp:
        """Returns the MLP of a layer."""
        name = f"model.layers.{index}"
        config = self.config
        hidden = config.hidden_size
        inner = config.intermediate_size
        return Mlp(
            norm=self.norm(f"{name}.ffn_norm", hidden),
            gate=self.linear(f"{name}.feed_forward.w1", hidden, inner),
            up=self.linear(f"{name}.feed_forward.w3", hidden, inner),
            down=self.linear(f"{name}.feed_forward.w2", inner, hidden),
        )
