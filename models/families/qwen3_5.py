"""Qwen3.5 (dense): linear attention in most layers, gated attention in the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.partial_rotation import PartialRotation
from edgespec.models.layers.elements import Convolution
from edgespec.models.layers.recurrent import GatedDelta

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.elements import Norm
    from edgespec.models.layers.sublayers import Attention, Sublayer


class Qwen3_5(PartialRotation):  # noqa: N801 - the model's name
    """Llama with gated attention of normalized heads in some layers, GatedDelta in others."""

    models = "Qwen3.5, 3.6 and 3.8, dense, as Qwen3.8-27B"
    defaults = PartialRotation.but(
        max_position_embeddings=32768,
        num_key_value_heads=4,
        head_dim=256,
        partial_rotary_factor=0.25,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        full_attention_interval=4,
        eos_token_id=None,
    )
    norms_of_heads = ("q_norm", "k_norm")

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with the types of all layers."""
        if fields.get("layer_types") is not None:
            return fields
        every = fields.integer("full_attention_interval")
        types = [
            "linear_attention" if (index + 1) % every else "full_attention"
            for index in range(fields.integer("num_hidden_layers"))
        ]
        return fields.changed(layer_types=types)

    def mixer(self, index: int) -> Sublayer:
        """Returns the attention of a layer, of either kind."""
        if index not in self.config.recurrent:
            return self.attention(index)
        fields = self.config.fields
        hidden = self.config.hidden_size
        layer = f"{self.layers}.{index}"
        name = f"{layer}.linear_attn"
        heads = fields.integer("linear_num_value_heads")
        key_heads, key_size = (
            fields.integer(f"linear_{field}") for field in ("num_key_heads", "key_head_dim")
        )
        if heads % key_heads:
            raise fields.invalid(
                "linear_num_value_heads", f"must be a multiple of linear_num_key_heads={key_heads}"
            )
        value_size = fields.integer("linear_value_head_dim")
        channels = 2 * key_heads * key_size + heads * value_size
        size = fields.integer("linear_conv_kernel_dim")
        return GatedDelta(
            norm=self.norm(f"{layer}.input_layernorm", hidden),
            mixed=(self.linear(f"{name}.in_proj_qkv", hidden, channels),),
            gate=self.linear(f"{name}.in_proj_z", hidden, heads * value_size),
            rate=self.linear(f"{name}.in_proj_b", hidden, heads),
            decay=self.linear(f"{name}.in_proj_a", hidden, heads),
            convolutions=(Convolution(f"{name}.conv1d.weight", channels, size),),
            log_decay=f"{name}.A_log",
            decay_bias=f"{name}.dt_bias",
            # Alone among the norms, its weights are stored as they are.
            result_norm=super().norm(f"{name}.norm", value_size),
            out=self.linear(f"{name}.out_proj", heads * value_size, hidden),
            key_heads=key_heads,
            value_heads=heads,
            key_size=key_size,
            value_size=value_size,
        )

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer, with gates behind queries."""
        attention = super().attention(index)
        q = replace(attention.q, out_features=2 * attention.q.out_features)
        return replace(attention, q=q, gated=True)

    def norm(self, name: str, size: int) -> Norm:
        """Returns the norm of that name; its stored weights are the difference to 1."""
        return replace(super().norm(name, size), offset=1.0)
