"""DeepSeek-V2 whose experts are one group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.latent import Latent

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder


class DeepseekV2(Latent):
    """A model with latents whose experts are chosen by their shares of all."""

    models = "DeepSeek-V2-Lite, DeepSeek-Coder-V2-Lite"
    defaults = Latent.but(
        kv_lora_rank=512,
        q_lora_rank=1536,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        moe_intermediate_size=1407,
        n_routed_experts=64,
        n_shared_experts=2,
        routed_scaling_factor=1.0,
        norm_topk_prob=False,
    )

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with numbers of groups, which are null where experts have none."""
        groups = {name: fields.get(name) or 1 for name in ("n_group", "topk_group")}
        return super().usual(fields.changed(**groups))

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        fields = self.config.fields
        # DeepSeek's code and that of transformers differ where it is set, as in no published model.
        fields.only({"norm_topk_prob": (False, None)}, "only shares of all experts are")
        fields.only({"moe_layer_freq": (1, None)}, "only experts in every layer are")
        return super().decoder()
