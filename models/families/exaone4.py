"""EXAONE 4."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.olmo2 import Olmo2

if TYPE_CHECKING:
    from edgespec.models.layers.sublayers import Attention


class Exaone4(Olmo2):
    """OLMo 2 with norms of each head, and, if it has windows, RoPE only in layers with one."""

    defaults = Olmo2.but(
        num_key_value_heads=32,
        sliding_window=4096,
        sliding_window_pattern=4,
        eos_token_id=2,
    )
    heads_together = False

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        config = self.config
        attention = super().attention(index)
        turned = config.fields.get("sliding_window") is None or config.windows[index] is not None
        return attention if turned else replace(attention, rope="")
