"""Gemma 3 (text only)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.bundle.sublayers import DEFAULT_ROPE
from edgespec.models.families.gemma2 import Gemma2
from edgespec.models.rope import LOCAL_ROPE, ropes_by_layer_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.layers import Attention
    from edgespec.models.rope import Rope


class Gemma3(Gemma2):
    """Gemma 2 with norms of heads instead of soft limits, and a RoPE of their own for windows."""

    defaults: ClassVar[Mapping[str, object]] = {
        **Gemma2.defaults,
        # Published configs of models that also read pictures leave out these sizes.
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "max_position_embeddings": 131_072,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    }

    def ropes(self) -> dict[str, Rope]:
        """Returns a rotation table for layers without a window, and one for those with."""
        theta = self.config.fields.number("rope_local_base_freq")
        return ropes_by_layer_type(self.config.fields, self.config.head_dim, theta)

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer, with norms of its heads and of its output."""
        name, head_dim = f"model.layers.{index}.self_attn", self.config.head_dim
        return replace(
            super().attention(index),
            q_norm=self.norm(f"{name}.q_norm", head_dim),
            k_norm=self.norm(f"{name}.k_norm", head_dim),
            rope=DEFAULT_ROPE if self.config.windows[index] is None else LOCAL_ROPE,
        )
