"""Qwen3-VL with mixtures of experts, as Qwen3-VL-30B-A3B."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.mixture import unstacked_by_layer
from edgespec.models.families.qwen3_moe import Qwen3Moe

if TYPE_CHECKING:
    from edgespec.models.formats.tensors import TensorSource


class Qwen3VlMoe(Qwen3Moe):
    """Qwen3-MoE with other defaults; rows of text have one position, as in Qwen3-VL."""

    defaults = Qwen3Moe.but(
        max_position_embeddings=128_000,
        rope_theta=500_000.0,
        num_key_value_heads=16,
        num_local_experts=60,
        num_experts_per_tok=4,
        moe_intermediate_size=1408,
        norm_topk_prob=True,
        tie_word_embeddings=True,
    )

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights; files have all experts of a layer in two tensors."""
        return unstacked_by_layer(tensors, self)
