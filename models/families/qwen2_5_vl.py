"""Qwen2.5-VL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.qwen2 import Qwen2

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields


class Qwen2_5Vl(Qwen2):  # noqa: N801 - the model's name
    """Qwen2 with other defaults; rows of text have one position, whatever the part of a head."""

    models = "Qwen2.5-VL"
    published = ""
    defaults = Qwen2.but(
        num_key_value_heads=8,
        rms_norm_eps=1e-5,
        max_window_layers=80,
        eos_token_id=151_645,
    )

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with the usual RoPE, which that of published ones is for texts."""
        scaling = fields.group("rope_scaling")
        published = "mrope" in (scaling.get("rope_type"), scaling.get("type"))
        return fields.changed(rope_scaling=None) if published else fields
