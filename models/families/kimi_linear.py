"""Kimi Linear: Kimi Delta Attention in most layers, attention to latents in the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.models.families.glm4_moe_lite import Glm4MoeLite
from edgespec.models.families.mixture import (
    beside_one_of_all,
    by_sigmoids,
    dense_layers,
    in_sparse_block,
)
from edgespec.models.families.partial_rotation import split
from edgespec.models.formats.parts import Parts, TensorRows
from edgespec.models.layers.elements import Convolution, Linear
from edgespec.models.layers.recurrent import GatedDelta

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.sublayers import LatentAttention, Mlp, MlpAndMoe, Sublayer

# What published files call fields otherwise, and those of a group in them.
_NAMES = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
_GROUP = "linear_attn_config"
_IN_GROUP = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
_FULL = "full_attn_layers"


class KimiLinear(Glm4MoeLite):
    """A model with latents that nothing rotates, or gated delta rule with decays of keys."""

    models = "Kimi-Linear-48B-A3B"
    defaults = Glm4MoeLite.but(
        num_attention_heads=32,
        q_lora_rank=None,
        qk_nope_head_dim=128,
        v_head_dim=128,
        moe_intermediate_size=1024,
        n_routed_experts=256,
        num_experts_per_tok=8,
        routed_scaling_factor=2.446,
        first_k_dense_replace=1,
        linear_head_dim=128,
        linear_num_heads=32,
        linear_conv_kernel_dim=4,
        max_position_embeddings=1_048_576,
        eos_token_id=163_586,
    )
    splitting = "kimi-k2"

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config under the names of others, with the types of all layers."""
        group = fields.group(_GROUP)
        fields = fields.under(_NAMES)
        given = {own: group.get(name) for name, own in _IN_GROUP.items()}
        given = {own: value for own, value in given.items() if value is not None}
        layers = range(fields.integer("num_hidden_layers", most=2**12))
        if fields.get("layer_types") is None:
            full = _full_layers(group, layers)
            kinds = ("linear_attention", "full_attention")
            given["layer_types"] = [kinds[index in full] for index in layers]
        if fields.get("mlp_layer_types") is None:
            dense = dense_layers(fields, "first_k_dense_replace")
            given["mlp_layer_types"] = ["dense" if n < dense else "sparse" for n in layers]
        return super().usual(fields.changed(**given, rope_interleave=False))

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        fields = self.config.fields
        fields.only({"hidden_act": ("silu",)}, "only silu is")
        fields.only({"moe_router_activation_func": ("sigmoid", None)}, "only sigmoid is")
        fields.only({"mla_use_nope": (True, None)}, "only attention without rotation is")
        # Of the next Kimi, whose layers are of the same kinds.
        fields.only({"attn_res_block_size": (None,)}, "use Kimi Linear")
        fields.group(_GROUP).only({"gate_lower_bound": (None,)}, "use Kimi Linear")
        return super().decoder()

    def mixer(self, index: int) -> Sublayer:
        """Returns the attention of a layer, of either kind."""
        if index not in self.config.recurrent:
            return self.attention(index)
        fields = self.config.fields
        hidden = self.config.hidden_size
        layer = f"{self.layers}.{index}"
        name = f"{layer}.self_attn"
        heads = fields.integer("linear_num_heads")
        size = fields.integer("linear_head_dim", most=2**16)
        width = heads * size
        kernel = fields.integer("linear_conv_kernel_dim")

        def linear(part: str, in_features: int, out_features: int) -> Linear:
            return Linear(f"{name}.{part}.weight", in_features, out_features)

        return GatedDelta(
            norm=self.norm(f"{layer}.input_layernorm", hidden),
            mixed=tuple(linear(f"{part}_proj", hidden, width) for part in "qkv"),
            convolutions=tuple(
                Convolution(f"{name}.{part}_conv1d.weight", width, kernel) for part in "qkv"
            ),
            gate_in=linear("g_a_proj", hidden, size),
            gate=linear("g_b_proj", size, width),
            rate=linear("b_proj", hidden, heads),
            decay_in=linear("f_a_proj", hidden, size),
            decay=linear("f_b_proj", size, width),
            log_decay=f"{name}.A_log",
            decay_bias=f"{name}.dt_bias",
            result_norm=self.norm(f"{name}.o_norm", size),
            out=linear("o_proj", width, hidden),
            key_heads=heads,
            value_heads=heads,
            key_size=size,
            value_size=size,
            decay_size=size,
            activation="sigmoid",
        )

    def attention(self, index: int) -> LatentAttention:
        """Returns the attention of a layer to latents."""
        return replace(super().attention(index), rope="")

    def feed_forward(self, index: int) -> Mlp | MlpAndMoe:
        """Returns the MLP of a layer, or its mixture of experts."""
        dense = self.mlp(index)
        if self.is_dense(index):
            return dense
        like = in_sparse_block(dense, f"{self.layers}.{index}")
        return by_sigmoids(beside_one_of_all(self, index, like))

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights.

        Files have factors of decays in four dimensions, and where transformers has saved them, it
        has called MLPs like mixtures.
        """
        parts = dict[str, TensorRows]()
        for index in range(self.config.num_layers):
            layer = self.mixer(index)
            if isinstance(layer, GatedDelta) and len(tensors.shape(layer.log_decay)) > 1:
                first = np.zeros(1, np.int64)
                parts[layer.log_decay] = TensorRows(layer.log_decay, first, 1, vector=True)
            for linear in self.mlp(index).linears if self.is_dense(index) else ():
                saved = linear.weight.replace(".mlp.", ".block_sparse_moe.")
                parts |= split(saved, linear) if saved in tensors.names else {}
        return super().arranged(Parts(tensors, parts))


def _full_layers(group: ConfigFields, layers: range) -> frozenset[int]:
    """Returns which layers attend to latents; published files count from 1."""
    listed = group.get(_FULL)
    if listed is None:
        return frozenset(index for index in layers if index and index % 4 == 0)
    if not isinstance(listed, list) or not all(isinstance(each, int) for each in listed):
        raise group.invalid(_FULL, "must be a list of numbers of layers")
    return frozenset(number - 1 for number in listed)
