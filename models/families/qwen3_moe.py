"""Qwen3-MoE, as Qwen3-30B-A3B."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.mixture import mixture
from edgespec.models.families.qwen3 import Qwen3

if TYPE_CHECKING:
    from edgespec.models.layers.sublayers import Mlp, MlpAndMoe, Moe


class Qwen3Moe(Qwen3):
    """Qwen3 with a mixture of experts in all layers, or in some of them."""

    defaults = Qwen3.but(
        head_dim=None,
        num_key_value_heads=4,
        max_window_layers=None,
        moe_intermediate_size=768,
        num_experts_per_tok=8,
        decoder_sparse_step=1,
    )

    def feed_forward(self, index: int) -> Mlp | Moe | MlpAndMoe:
        """Returns the MLP of a layer, or its mixture of experts."""
        fields = self.config.fields
        named = fields.get("mlp_only_layers") or []
        if not isinstance(named, list):
            raise fields.invalid("mlp_only_layers", "must be a list of layers")
        if index in named or (index + 1) % fields.integer("decoder_sparse_step"):
            return self.mlp(index)
        return self.experts(index)

    def experts(self, index: int) -> Moe | MlpAndMoe:
        """Returns the mixture of experts of a layer that has one."""
        width = self.config.fields.integer("moe_intermediate_size")
        return mixture(self.config, self.mlp(index), width)
