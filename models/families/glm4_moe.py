"""GLM-4.5 and 4.6, with mixtures of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.llama import QKV
from edgespec.models.families.mixture import (
    beside_one_of_all,
    by_sigmoids,
    dense_layers,
    unstacked_by_layer,
)
from edgespec.models.families.partial_rotation import PartialRotation

if TYPE_CHECKING:
    from edgespec.models.config import ModelConfig
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.elements import Norm
    from edgespec.models.layers.sublayers import Mlp, MlpAndMoe

_DENSE = "first_k_dense_replace"


class Glm4Moe(PartialRotation):
    """Llama with heads of which half is rotated, and experts that are chosen by sigmoids."""

    models = "GLM-4.5, GLM-4.5-Air and GLM-4.6"
    defaults = PartialRotation.but(
        num_attention_heads=96,
        num_key_value_heads=8,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        partial_rotary_factor=0.5,
        moe_intermediate_size=1408,
        num_experts_per_tok=8,
        n_shared_experts=1,
        n_routed_experts=128,
        routed_scaling_factor=1.0,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        norm_topk_prob=True,
        eos_token_id=None,
    )
    norms_of_heads = ("q_norm", "k_norm")
    biased = QKV

    def head_norms(self, name: str) -> tuple[Norm | None, Norm | None]:
        """Returns the norms of queries and keys, if the config has them."""
        return super().head_norms(name) if self.config.fields.flag("use_qk_norm") else (None, None)

    def feed_forward(self, index: int) -> Mlp | MlpAndMoe:
        """Returns the MLP of a layer, or its mixture of experts."""
        if index < dense_layers(self.config.fields, _DENSE):
            return self.mlp(index)
        return by_sigmoids(beside_one_of_all(self, index))

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights with each expert's matrices as tensors of their own."""
        return unstacked_by_layer(super().arranged(tensors), self)

    @classmethod
    def of_head(cls, config: ModelConfig) -> ModelConfig:
        """Returns the config of a draft head's only layer, which has experts."""
        config, fields = super().of_head(config), config.fields
        return replace(config, fields=fields.changed(first_k_dense_replace=0))
