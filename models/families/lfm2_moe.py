"""LFM2 with mixtures of experts, as LFM2-8B-A1B."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.lfm2 import Lfm2
from edgespec.models.families.mixture import dense_layers, mixture

if TYPE_CHECKING:
    from edgespec.models.layers.sublayers import Mlp, Moe


class Lfm2Moe(Lfm2):
    """LFM2 with mixtures of experts behind its first layers, which are chosen by sigmoids."""

    models = "LFM2-8B-A1B and others with mixtures of experts"
    defaults = Lfm2.but(
        block_auto_adjust_ff_dim=False,
        moe_intermediate_size=1792,
        num_dense_layers=2,
        num_experts=32,
        num_experts_per_tok=4,
        use_expert_bias=True,
        routed_scaling_factor=1.0,
        norm_topk_prob=True,
    )

    def feed_forward(self, index: int) -> Mlp | Moe:
        """Returns the MLP of a layer, or its mixture of experts."""
        fields = self.config.fields
        dense = self.mlp(index)
        if index < dense_layers(fields, "num_dense_layers"):
            return dense
        biased = fields.flag("use_expert_bias")
        return replace(
            mixture(self.config, dense, fields.integer("moe_intermediate_size")),
            sigmoid=True,
            least_sum=1e-6,
            choice_bias=f"{self.layers}.{index}.feed_forward.expert_bias" if biased else None,
            output_factor=fields.number("routed_scaling_factor"),
        )
