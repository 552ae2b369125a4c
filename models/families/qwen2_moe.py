"""Qwen2 with mixtures of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.config import check_windows_listed
from edgespec.models.families.llama import QKV
from edgespec.models.families.mixture import beside_weighed
from edgespec.models.families.qwen3_moe import Qwen3Moe

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.sublayers import MlpAndMoe


class Qwen2Moe(Qwen3Moe):
    """Qwen2 with a mixture of experts in layers, each beside an expert that all rows read."""

    models = "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B"
    defaults = Qwen3Moe.but(
        num_key_value_heads=16,
        max_window_layers=28,
        moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632,
        num_experts=60,
        num_experts_per_tok=4,
        qkv_bias=True,
    )
    norms_of_heads = ("", "")

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config where models without windows have null for their size, and not 0."""
        return fields.changed(sliding_window=fields.get("sliding_window") or None)

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        check_windows_listed(self.config.fields)
        return super().decoder()

    def experts(self, index: int) -> MlpAndMoe:
        """Returns the mixture of experts of a layer, and the expert that all rows read."""
        width = self.config.fields.integer("shared_expert_intermediate_size")
        return beside_weighed(self, index, width)

    def has_bias(self, name: str) -> bool:
        """Returns whether a projection has a bias; only those of q, k and v may."""
        return self.config.fields.flag("qkv_bias") and name.endswith(QKV)
