"""GLM-4 MoE lite, as GLM-4.7-Flash: attention to latents, and mixtures of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.latent import Latent
from edgespec.models.families.mixture import by_sigmoids
from edgespec.models.layers.sublayers import MlpAndMoe

if TYPE_CHECKING:
    from edgespec.models.config import ModelConfig
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.sublayers import Mlp


class Glm4MoeLite(Latent):
    """A model with latents whose experts are chosen by sigmoids and a bias of each."""

    models = "GLM-4.7-Flash"
    defaults = Latent.but(
        num_attention_heads=20,
        kv_lora_rank=512,
        q_lora_rank=768,
        qk_rope_head_dim=64,
        qk_nope_head_dim=192,
        v_head_dim=256,
        moe_intermediate_size=1536,
        n_routed_experts=64,
        num_experts_per_tok=4,
        routed_scaling_factor=1.8,
        max_position_embeddings=202_752,
        rms_norm_eps=1e-5,
        eos_token_id=1,
    )

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config which says of each layer whether it has experts."""
        fields, layers = super().usual(fields), fields.integer("num_hidden_layers")
        types = fields.get("mlp_layer_types")
        if types is None:
            types = ["dense", *["sparse"] * (layers - 1)]
        if not isinstance(types, list) or len(types) != layers:
            raise fields.invalid("mlp_layer_types", f"must be a list of {layers} layers")
        return fields.changed(mlp_layer_types=types)

    def is_dense(self, index: int) -> bool:
        """Returns whether a layer has an MLP in place of experts."""
        types = self.config.fields.get("mlp_layer_types")
        assert isinstance(types, list)
        return bool(types[index] != "sparse")

    def feed_forward(self, index: int) -> Mlp | MlpAndMoe:
        """Returns the MLP of a layer, or its mixture of experts."""
        found = super().feed_forward(index)
        return by_sigmoids(found) if isinstance(found, MlpAndMoe) else found

    @classmethod
    def of_head(cls, config: ModelConfig) -> ModelConfig:
        """Returns the config of a draft head's only layer, which has experts."""
        config, fields = super().of_head(config), config.fields
        return replace(config, fields=fields.changed(mlp_layer_types=["sparse"]))
