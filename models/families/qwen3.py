"""Qwen3 (dense models)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.models.families.llama import Llama
from edgespec.models.families.qwen2 import Qwen2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.layers import Attention


class Qwen3(Llama):
    """Llama with a configurable head size and normalized query and key heads."""

    defaults: ClassVar[Mapping[str, object]] = {**Qwen2.defaults, "head_dim": 128}

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer, with norms of its heads."""
        name, head_dim = f"{self.layers}.{index}.self_attn", self.config.head_dim
        return replace(
            super().attention(index),
            q_norm=self.norm(f"{name}.q_norm", head_dim),
            k_norm=self.norm(f"{name}.k_norm", head_dim),
        )
