"""Ministral 3."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.llama import Mistral

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder

_log = logging.getLogger(__name__)


class Ministral3(Mistral):
    """Mistral whose attention is sharper beyond the original context, where texts end here."""

    models = "Ministral 3, with texts up to its original context (16384)"
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
        return within_original(super().decoder(), self.config.fields)


def within_original(decoder: Decoder, fields: ConfigFields) -> Decoder:
    """Returns the description of a model whose texts end at its original context.

    Queries are multiplied by 1 + beta * log(1 + floor(position / original context)), which is 1
    there.
    """
    scaling = fields.group("rope_scaling" if fields.get("rope_scaling") else "rope_parameters")
    name = "original_max_position_embeddings"
    if not scaling.get("llama_4_scaling_beta"):
        return decoder
    original = scaling.integer(name)
    if original < decoder.context_length:
        _log.warning(
            "%s: llama_4_scaling_beta=%s changes attention behind %s=%d, which is not "
            "implemented: texts end there",
            scaling.source,
            scaling.get("llama_4_scaling_beta"),
            name,
            original,
        )
    return replace(decoder, context_length=min(original, decoder.context_length))
