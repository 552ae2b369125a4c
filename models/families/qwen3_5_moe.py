"""Qwen3.5 with mixtures of experts, as Qwen3.5-35B-A3B and Qwen3.6-35B-A3B."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.mixture import beside_weighed, unstacked_by_layer
from edgespec.models.families.qwen3_5 import Qwen3_5

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.sublayers import MlpAndMoe


class Qwen3_5Moe(Qwen3_5):  # noqa: N801 - the model's name
    """Qwen3.5 with a mixture of experts in every layer, beside one that all rows read."""

    models = "Qwen3.5 and 3.6 with mixtures of experts"
    defaults = Qwen3_5.but(
        num_key_value_heads=2,
        num_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
        norm_topk_prob=True,
    )

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with the types of all layers, and the shared expert's width."""
        width = fields.integer("shared_expert_intermediate_size")
        return super().usual(fields.changed(intermediate_size=width))

    def feed_forward(self, index: int) -> MlpAndMoe:
        """Returns the mixture of experts of a layer, and the expert that all rows read."""
        return beside_weighed(self, index, self.config.intermediate_size)

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights; published files have all experts of a layer in two tensors."""
        return super().arranged(unstacked_by_layer(tensors, self))
