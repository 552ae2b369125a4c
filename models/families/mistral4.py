"""Mistral 4, as Mistral Small 4: attention to latents, and mixtures of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.growing import with_growth
from edgespec.models.families.latent import Latent
from edgespec.models.families.ministral3 import growth_behind

if TYPE_CHECKING:
    from edgespec.models.layers.decoder import Decoder


class Mistral4(Latent):
    """A model with latents whose attention is sharper beyond the original context."""

    models = "Mistral Small 4"
    defaults = Latent.but(
        kv_lora_rank=256,
        q_lora_rank=1024,
        qk_rope_head_dim=64,
        qk_nope_head_dim=64,
        v_head_dim=128,
        moe_intermediate_size=2048,
        n_routed_experts=128,
        num_experts_per_tok=4,
        routed_scaling_factor=1.0,
        max_position_embeddings=1_048_576,
        rms_norm_eps=1e-6,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 128.0,
            "original_max_position_embeddings": 8192,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
        eos_token_id=2,
    )

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        return with_growth(super().decoder(), growth_behind(self.config.fields))
