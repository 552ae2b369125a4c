"""Granite 4, as far as its layers are attention and an MLP."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.models.families.granite import Granite
from edgespec.models.families.partly_rotated import split
from edgespec.models.parts import Part, Parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.config import ModelConfig
    from edgespec.models.layers import Attention
    from edgespec.models.tensors import TensorSource


class GraniteMoeHybrid(Granite):
    """Granite 3 with fused projections in the MLP, and RoPE only if the config asks for it."""

    defaults: ClassVar[Mapping[str, object]] = {
        **Granite.defaults,
        "num_local_experts": 8,
        "shared_intermediate_size": 1024,
    }

    def __init__(self, config: ModelConfig) -> None:
        fields = config.fields
        if fields.get("num_local_experts"):
            raise fields.unsupported("num_local_experts", "use a model without experts")
        if fields.get("layer_types") is None:
            raise fields.unsupported("layer_types", "without it, all layers carry a state (Mamba)")
        if fields.get("position_embedding_type") not in (None, "rope"):
            raise fields.unsupported("position_embedding_type", "use 'rope' or null")
        super().__init__(
            replace(config, intermediate_size=fields.integer("shared_intermediate_size"))
        )

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        attention = super().attention(index)
        turned = self.config.fields.get("position_embedding_type") == "rope"
        return attention if turned else replace(attention, rope="")

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights; files have one tensor for gate and up."""
        parts = dict[str, Part]()
        for index in range(self.config.num_layers):
            name, mlp = f"model.layers.{index}.shared_mlp", self.mlp(index)
            parts |= split(f"{name}.input_linear.weight", mlp.gate, mlp.up)
            parts |= split(f"{name}.output_linear.weight", mlp.down)
        return super().arranged(Parts(tensors, parts))
