"""ERNIE 4.5."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.partial_rotation import PartialRotation

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields


class Ernie4_5(PartialRotation):  # noqa: N801 - the model's name
    """Llama with heads of which neighbouring dimensions turn together."""

    models = "ERNIE 4.5, dense, as ERNIE-4.5-0.3B"
    defaults = PartialRotation.but(
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        tie_word_embeddings=True,
    )
    interleaved = True

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with biases under the names of Llama; all projections have them."""
        asked = fields.flag("use_bias")
        return fields.changed(attention_bias=asked, mlp_bias=asked)
