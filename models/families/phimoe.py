"""Phi-3.5-MoE and Phi-mini-MoE."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.mixtral import Mixtral
from edgespec.models.layers.elements import LayerNorm
from edgespec.models.layers.rope import original_context

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.elements import Norm
    from edgespec.models.layers.sublayers import Moe


class PhiMoe(Mixtral):
    """Mixtral with layer norms, biases, and experts that are chosen one after the other."""

    models = "Phi-3.5-MoE, Phi-mini-MoE, Phi-tiny-MoE"
    defaults = Mixtral.but(num_local_experts=16, router_jitter_noise=0.01)

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config whose factors of RoPE have the usual name."""
        name = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
        scaling = fields.group(name)
        if scaling.get("short_mscale") is None or scaling.get("long_mscale") is None:
            return fields
        context = fields.integer("max_position_embeddings")
        long = context > original_context(fields, scaling)
        factor = scaling.number("long_mscale" if long else "short_mscale")
        return fields.changed(**{name: {**scaling.values, "attention_factor": factor}})

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        fields = self.config.fields
        fields.only({"num_experts_per_tok": (2,)}, "only two experts of a row are")
        decoder = super().decoder()
        bias = "lm_head.bias" if fields.flag("lm_head_bias") else None
        return replace(decoder, lm_head=replace(decoder.lm_head, bias=bias))

    def feed_forward(self, index: int) -> Moe:
        """Returns the mixture of experts of a layer."""
        reach = 2 * self.config.fields.number("router_jitter_noise")
        return replace(super().feed_forward(index), normalized=False, reach=reach)

    def norm(self, name: str, size: int) -> Norm:
        """Returns the normalization of that name."""
        return LayerNorm(f"{name}.weight", size, self.config.norm_eps, bias=f"{name}.bias")
