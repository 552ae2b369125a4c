"""Granite 4: state spaces (Mamba-2) in most layers or none, with or without experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.granitemoe import GraniteMoe
from edgespec.models.families.mamba import Mamba
from edgespec.models.families.partial_rotation import split
from edgespec.models.formats.parts import Parts, TensorRows
from edgespec.models.layers.sublayers import MlpAndMoe

if TYPE_CHECKING:
    from edgespec.models.config import ModelConfig
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.sublayers import Attention, Mlp, Sublayer


class GraniteMoeHybrid(GraniteMoe):
    """Granite 3 with an MLP beside its experts, state spaces, and RoPE only if it is asked for."""

    models = "Granite 4, with state spaces and experts or without"
    defaults = GraniteMoe.but(
        shared_intermediate_size=1024,
        mamba_n_heads=128,
        mamba_n_groups=1,
        mamba_d_state=256,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_conv_bias=True,
    )

    def __init__(self, config: ModelConfig) -> None:
        fields = config.fields
        allowed = {"position_embedding_type": (None, "nope", "rope")}
        fields.only(allowed, "use 'rope', 'nope' or null")
        super().__init__(
            replace(config, intermediate_size=fields.integer("shared_intermediate_size"))
        )

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with the types of all layers."""
        if fields.get("layer_types") is not None:
            return fields
        types = ["mamba"] * fields.integer("num_hidden_layers", most=2**12)
        return fields.changed(layer_types=types)

    def mixer(self, index: int) -> Sublayer:
        """Returns the attention or the state space of a layer."""
        if index not in self.config.recurrent:
            return self.attention(index)
        name = f"{self.layers}.{index}"
        factor = self.config.fields.number("residual_multiplier")
        norm = self.norm(f"{name}.input_layernorm", self.config.hidden_size)
        width = self.config.fields.integer("mamba_expand") * self.config.hidden_size
        layer = Mamba.of(self, width).layer(self, f"{name}.mamba", norm)
        return replace(layer, output_factor=factor)

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        attention = super().attention(index)
        turned = self.config.fields.get("position_embedding_type") == "rope"
        return attention if turned else replace(attention, rope="")

    def feed_forward(self, index: int) -> Mlp | MlpAndMoe:
        """Returns the MLP of a layer, which may have a mixture of experts beside it."""
        mlp = self.mlp(index)
        if not self.config.fields.get("num_local_experts"):
            return mlp
        return MlpAndMoe(
            replace(mlp, norm=None, output_factor=1.0),
            replace(self.mixture(index), norm=None, output_factor=1.0),
            norm=mlp.norm,
            output_factor=mlp.output_factor,
        )

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights; files have one tensor for gate and up, GGUF's are as they are."""
        if self.config.fields.get("num_local_experts"):
            tensors = super().arranged(tensors)
        parts = dict[str, TensorRows]()
        for index in range(self.config.num_layers):
            name = f"model.layers.{index}.shared_mlp"
            mlp = self.mlp(index)
            if f"{name}.input_linear.weight" in tensors.names:
                parts |= split(f"{name}.input_linear.weight", mlp.gate, mlp.up)
                parts |= split(f"{name}.output_linear.weight", mlp.down)
        return Parts(tensors, parts)
