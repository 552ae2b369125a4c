"""Qwen3-VL."""

from __future__ import annotations

from edgespec.models.families.qwen3 import Qwen3


class Qwen3Vl(Qwen3):
    """Qwen3 with other defaults; rows of text have one position, whatever the part of a head."""

    defaults = Qwen3.but(max_position_embeddings=128_000, rope_theta=500_000.0)
