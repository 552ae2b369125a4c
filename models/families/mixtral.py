"""Mixtral."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.llama import Mistral
from edgespec.models.families.mixture import in_sparse_block, mixture

if TYPE_CHECKING:
    from edgespec.models.layers.sublayers import Moe


class Mixtral(Mistral):
    """Mistral with a mixture of experts in every layer."""

    models = "Mixtral 8x7B and 8x22B"
    defaults = Mistral.but(
        rms_norm_eps=1e-5,
        rope_theta=1_000_000.0,
        sliding_window=None,
        num_local_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
    )

    def feed_forward(self, index: int) -> Moe:
        """Returns the mixture of experts of a layer."""
        named = in_sparse_block(self.mlp(index), f"{self.layers}.{index}")
        return mixture(self.config, named, self.config.intermediate_size)
