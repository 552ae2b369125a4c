"""CWM, Meta's code world model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.llama import Llama

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields

# What transformers assumes where the config says nothing.
_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
_EVERY = 4  # layer without a window, from the first on


class Cwm(Llama):
    """Llama with windows in three of four layers."""

    models = "CWM, Meta's code world model of 32B"
    defaults = Llama.but(
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        sliding_window=8192,
        eos_token_id=[128_001, 128_008, 128_009],
    )

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with parameters of RoPE and the types of all layers."""
        if not (fields.get("rope_parameters") or fields.get("rope_scaling")):
            fields = fields.changed(rope_parameters=_ROPE)
        if fields.get("layer_types") is not None:
            return fields
        types = [
            "sliding_attention" if index % _EVERY else "full_attention"
            for index in range(fields.integer("num_hidden_layers", most=2**12))
        ]
        return fields.changed(layer_types=types)
