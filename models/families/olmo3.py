"""OLMo 3."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.bundle.sublayers import DEFAULT_ROPE
from edgespec.models.families.olmo2 import Olmo2
from edgespec.models.layers.rope import LOCAL_ROPE, ropes_by_layer_type

if TYPE_CHECKING:
    from edgespec.models.layers.rope import Rope
    from edgespec.models.layers.sublayers import Attention


class Olmo3(Olmo2):
    """OLMo 2 with windows in most layers, to which RoPE's scaling does not apply."""

    defaults = Olmo2.but(
        sliding_window=4096,
        sliding_window_pattern=4,
        rope_theta=500_000.0,
    )

    def ropes(self) -> dict[str, Rope]:
        """Returns a rotation table for layers without a window, and one for those with."""
        theta = self.config.fields.number("rope_theta")
        return ropes_by_layer_type(self.config.fields, self.config.head_dim, theta)

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        windowed = self.config.windows[index] is not None
        return replace(super().attention(index), rope=LOCAL_ROPE if windowed else DEFAULT_ROPE)
