"""EXAONE 4."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.models.families.olmo2 import Olmo2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.layers import Attention


class Exaone4(Olmo2):
    """OLMo 2 with norms of each head, and, if it has windows, RoPE only in layers with one."""

    defaults: ClassVar[Mapping[str, object]] = {
        **Olmo2.defaults,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "eos_token_id": 2,
    }

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        config, name = self.config, f"model.layers.{index}.self_attn"
        attention = replace(
            super().attention(index),
            q_norm=self.norm(f"{name}.q_norm", config.head_dim),
            k_norm=self.norm(f"{name}.k_norm", config.head_dim),
        )
        turned = config.fields.get("sliding_window") is None or config.windows[index] is not None
        return attention if turned else replace(attention, rope="")
