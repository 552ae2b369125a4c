"""Gemma of 2024, the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.gemma2 import Gemma2

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields


class Gemma(Gemma2):
    """Gemma 2 with two norms per layer, and neither windows nor limits."""

    models = "Gemma 2B and 7B, CodeGemma"
    defaults = Gemma2.but(
        hidden_act="gelu_pytorch_tanh",
        num_key_value_heads=16,
        sliding_window=None,
        sliding_window_pattern=None,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
    )
    norms_before = ("input_layernorm", "post_attention_layernorm")
    norms_behind = ("", "")

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config whose scores are scaled by the size of a head.

        Published files call the activation `gelu`, and mean its approximation with tanh.
        """
        named = fields.get("hidden_act")
        return fields.changed(
            query_pre_attn_scalar=fields.integer("head_dim"),
            hidden_activation="gelu_pytorch_tanh" if named == "gelu" else named,
        )
