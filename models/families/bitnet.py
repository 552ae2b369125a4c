"""BitNet b1.58, whose weights are -1, 0 and 1."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.llama import Llama

if TYPE_CHECKING:
    from edgespec.models.layers.sublayers import Attention, Mlp


class BitNet(Llama):
    """Llama with norms before the last matrices of attention and MLP, and squares as activation."""

    models = "BitNet b1.58 2B4T"
    defaults = Llama.but(
        hidden_act="relu2",
        num_key_value_heads=5,
        rms_norm_eps=1e-5,
        eos_token_id=128_001,
    )

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        attention = super().attention(index)
        name = f"{self.layers}.{index}.self_attn.attn_sub_norm"
        return replace(attention, inner_norm=self.norm(name, attention.o.in_features))

    def mlp(self, index: int) -> Mlp:
        """Returns the MLP of a layer."""
        mlp = super().mlp(index)
        name = f"{self.layers}.{index}.mlp.ffn_sub_norm"
        return replace(mlp, inner_norm=self.norm(name, mlp.down.in_features))
