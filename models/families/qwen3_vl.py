"""Qwen3-VL."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from edgespec.models.families.qwen3 import Qwen3

if TYPE_CHECKING:
    from collections.abc import Mapping


class Qwen3Vl(Qwen3):
    """Qwen3 with other defaults; rows of text have one position, whatever the part of a head."""

    defaults: ClassVar[Mapping[str, object]] = {
        **Qwen3.defaults,
        "max_position_embeddings": 128_000,
        "rope_theta": 500_000.0,
    }
