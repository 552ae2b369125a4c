"""Ministral 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.bundle.manifest import Growth
from edgespec.models.families.growing import with_growth
from edgespec.models.families.llama import Mistral

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder


class Ministral3(Mistral):
    """Mistral whose attention is sharper beyond the original context."""

    models = "Ministral 3"
    defaults = Mistral.but(
        head_dim=128,
        max_position_embeddings=262_144,
        rms_norm_eps=1e-5,
        sliding_window=None,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1_000_000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    )

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        return with_growth(super().decoder(), growth_behind(self.config.fields))


def growth_behind(fields: ConfigFields) -> Growth | None:
    """Returns what queries grow by behind the original context."""
    scaling = fields.group("rope_scaling" if fields.get("rope_scaling") else "rope_parameters")
    if not scaling.get("llama_4_scaling_beta"):
        return None
    span = scaling.integer("original_max_position_embeddings")
    return Growth(scaling.number("llama_4_scaling_beta"), span, 0)
