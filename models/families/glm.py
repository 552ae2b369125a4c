"""GLM-4 (dense models): of 2024 as `glm`, of 2025 as `glm4`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.llama import QKV, Llama
from edgespec.models.families.partial_rotation import PartialRotation, split
from edgespec.models.formats.parts import Parts, TensorRows

if TYPE_CHECKING:
    from edgespec.models.formats.tensors import TensorSource


class Glm(PartialRotation):
    """Llama with a fused MLP, and heads of which the neighbouring half is rotated."""

    models = "GLM-4-9B of 2024 in the format of transformers (`-hf`)"
    defaults = Llama.but(
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=131072,
        rms_norm_eps=1.5625e-7,
        attention_bias=True,
        partial_rotary_factor=0.5,
        eos_token_id=[151329, 151336, 151338],
    )
    interleaved = True
    biased = QKV

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights; files have one tensor for gate and up projection."""
        parts = dict[str, TensorRows]()
        for index in range(self.config.num_layers):
            layer = self.mlp(index)
            stored = f"model.layers.{index}.mlp.gate_up_proj.weight"
            parts |= split(stored, layer.gate, layer.up)
        return super().arranged(Parts(tensors, parts))


class Glm4(Glm):
    """GLM with further norms after its sublayers."""

    models = "GLM-4-9B and 32B of 2025 (0414), GLM-Z1"

    norms_behind = ("post_self_attn_layernorm", "post_mlp_layernorm")
