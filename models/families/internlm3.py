"""InternLM 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.llama import Llama

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields


class InternLm3(Llama):
    """Llama whose biases have other names."""

    models = "InternLM3-8B"
    defaults = Llama.but(
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-5,
    )

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with Llama's names.

        Raises:
            UnsupportedModelError: Queries, keys and values have biases and others not, or
                otherwise.
        """
        both = fields.flag("qkv_bias"), fields.flag("bias")
        if both[0] != both[1]:
            raise fields.unsupported("qkv_bias", f"use a model where it is {both[1]}, as bias is")
        return fields.changed(
            attention_bias=fields.flag("attention_bias") or both[0],
            mlp_bias=fields.flag("mlp_bias") or both[1],
        )
