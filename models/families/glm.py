"""GLM-4 (dense models): of 2024 as `glm`, of 2025 as `glm4`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.models.families.llama import Llama
from edgespec.models.families.partly_rotated import PartlyRotated, split
from edgespec.models.parts import Part, Parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.layers import Attention, Mlp
    from edgespec.models.tensors import TensorSource


class Glm(PartlyRotated):
    """Llama with a fused MLP, and heads of which the neighbouring half is rotated."""

    models: ClassVar[str] = "GLM-4-9B of 2024 in the format of transformers (`-hf`)"
    defaults: ClassVar[Mapping[str, object]] = {
        **Llama.defaults,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1.5625e-7,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "eos_token_id": [151329, 151336, 151338],
    }
    interleaved = True

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights; files have one tensor for gate and up projection."""
        parts = dict[str, Part]()
        for index in range(self.config.num_layers):
            layer = self.mlp(index)
            stored = f"model.layers.{index}.mlp.gate_up_proj.weight"
            parts |= split(stored, layer.gate, layer.up)
        return super().arranged(Parts(tensors, parts))

    def has_bias(self, name: str) -> bool:
        """Returns whether a projection has a bias; only those of q, k and v may."""
        return self.config.attention_bias and name.endswith((".q_proj", ".k_proj", ".v_proj"))


class Glm4(Glm):
    """GLM with further norms after its sublayers."""

    models: ClassVar[str] = "GLM-4-9B and 32B of 2025 (0414), GLM-Z1"

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer, with a norm of its output."""
        name = f"model.layers.{index}.post_self_attn_layernorm"
        post_norm = self.norm(name, self.config.hidden_size)
        return replace(super().attention(index), post_norm=post_norm)

    def mlp(self, index: int) -> Mlp:
        """Returns the MLP of a layer, with a norm of its output."""
        name = f"model.layers.{index}.post_mlp_layernorm"
        post_norm = self.norm(name, self.config.hidden_size)
        return replace(super().mlp(index), post_norm=post_norm)
