"""Llama 4, text only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.bundle.manifest import Growth
from edgespec.models.families.growing import with_growth
from edgespec.models.families.mixture import beside_shared, mixture, unstacked_by_layer
from edgespec.models.families.partial_rotation import PartialRotation
from edgespec.models.families.smollm3 import SmolLm3
from edgespec.models.layers.elements import Linear, Norm

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.sublayers import Attention, Mlp, MlpAndMoe


class Llama4(PartialRotation, SmolLm3):
    """Llama without RoPE in some layers, and one expert a row, which reads it times its share.

    In layers with RoPE a row sees its chunk of the text alone, and queries of others grow with the
    position.
    """

    models = "Llama 4 Scout and Maverick"
    defaults = SmolLm3.but(
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        tie_word_embeddings=False,
        intermediate_size=8192,
        intermediate_size_mlp=16_384,
        num_local_experts=16,
        num_experts_per_tok=1,
        interleave_moe_layer_step=1,
        use_qk_norm=True,
        attention_chunk_size=8192,
        attn_temperature_tuning=True,
        attn_scale=0.1,
        floor_scale=8192,
        eos_token_id=2,
    )
    mlp_name = "feed_forward"
    interleaved = True

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with the usual names of widths, and without types of layers.

        `no_rope_layers` says these.
        """
        return fields.changed(
            layer_types=None,
            no_rope_layers=fields.get("no_rope_layers") or None,
            intermediate_size=fields.get("intermediate_size_mlp"),
            moe_intermediate_size=fields.get("intermediate_size"),
        )

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        fields = self.config.fields
        fields.only({"num_experts_per_tok": (1,)}, "only one expert of a row is")
        growth = None
        if fields.get("attn_temperature_tuning"):  # published as 4, too
            growth = Growth(fields.number("attn_scale"), fields.integer("floor_scale"), 1)
        return with_growth(super().decoder(), growth, unrotated=True)

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        attention = super().attention(index)
        fields = self.config.fields
        if not attention.rope:
            return attention
        chunk = fields.integer("attention_chunk_size", self.config.context_length)
        if chunk < self.config.context_length:
            attention = replace(attention, mask=f"chunk:{chunk}")
        if not fields.flag("use_qk_norm"):
            return attention
        norm = Norm("", self.config.head_dim, self.config.norm_eps)
        return replace(attention, q_norm=norm, k_norm=norm, norm_after_rope=True)

    def feed_forward(self, index: int) -> Mlp | MlpAndMoe:
        """Returns the MLP of a layer, or its mixture of experts."""
        config = self.config
        dense = self.mlp(index)
        if not self._has_experts(index):
            return dense
        name = f"{self.layers}.{index}.feed_forward"
        width = config.fields.integer("moe_intermediate_size", most=2**20)
        moe = mixture(config, dense, width)
        router = Linear(f"{name}.router.weight", config.hidden_size, moe.router.out_features)
        moe = replace(moe, router=router, sigmoid=True, shares_first=True)
        return beside_shared(moe, dense, f"{name}.shared_expert", width)

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights with each expert's matrices as tensors of their own."""
        return unstacked_by_layer(super().arranged(tensors), self)

    def _has_experts(self, index: int) -> bool:
        """Returns whether a layer has experts, by a list, or else every n-th."""
        fields = self.config.fields
        listed = fields.get("moe_layers")
        if listed is None:
            return (index + 1) % fields.integer("interleave_moe_layer_step") == 0
        if not isinstance(listed, list):
            raise fields.invalid("moe_layers", "must be a list of numbers of layers")
        return index in listed
