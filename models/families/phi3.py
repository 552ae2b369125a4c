"""Phi-3, Phi-4 and Phi-4-mini."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.llama import Llama
from edgespec.models.families.partial_rotation import PartialRotation, split
from edgespec.models.formats.parts import Parts, TensorRows

if TYPE_CHECKING:
    from edgespec.models.config import ModelConfig
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource

# Names of longrope in early checkpoints; transformers reads both in this way, for Phi-3 only.
_LONGROPE = ("su", "yarn")


class Phi3(PartialRotation):
    """Llama with fused projections, and in Phi-4-mini with heads that are partly rotated."""

    models = "Phi-3 and 3.5 mini and medium, Phi-4, Phi-4-mini"
    defaults = Llama.but(
        max_position_embeddings=4096,
        original_max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        eos_token_id=32000,
    )

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(replace(config, fields=_with_longrope(config)))

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights; files have one tensor for q, k and v, and one for gate and up."""
        parts = dict[str, TensorRows]()
        for index in range(self.config.num_layers):
            name = f"model.layers.{index}"
            attention = self.attention(index)
            mlp = self.mlp(index)
            parts |= split(f"{name}.self_attn.qkv_proj.weight", *attention.linears[:-1])
            parts |= split(f"{name}.mlp.gate_up_proj.weight", mlp.gate, mlp.up)
        return super().arranged(Parts(tensors, parts))

    def has_bias(self, name: str) -> bool:
        """Returns that no projection has a bias; the config has no option for it."""
        return False


def _with_longrope(config: ModelConfig) -> ConfigFields:
    """Returns the config's fields with the usual name of RoPE's type."""
    fields = config.fields
    name = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    values = fields.group(name).values
    renamed = {
        key: "longrope" if key in ("rope_type", "type") and value in _LONGROPE else value
        for key, value in values.items()
    }
    return fields.changed(**{name: renamed})
