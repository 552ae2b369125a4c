"""Mixtral."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.llama import Mistral
from edgespec.models.families.mixture import mixture

if TYPE_CHECKING:
    from edgespec.models.layers.elements import Linear
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
        dense = self.mlp(index)
        place = f"{self.layers}.{index}.block_sparse_moe"

        def called(linear: Linear, name: str) -> Linear:
            return replace(linear, weight=f"{place}.{name}.weight")

        named = replace(
            dense,
            gate=called(dense.gate, "w1"),
            up=called(dense.up, "w3"),
            down=called(dense.down, "w2"),
        )
        return mixture(self.config, named, self.config.intermediate_size)
