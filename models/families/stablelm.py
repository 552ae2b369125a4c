"""StableLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.llama import QKV, Llama
from edgespec.models.families.partial_rotation import PartialRotation
from edgespec.models.layers.elements import LayerNorm

if TYPE_CHECKING:
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.elements import Norm


class StableLm(PartialRotation):
    """Llama with layer normalization and heads of which a part is rotated."""

    models = "StableLM 3B, StableLM 2 1.6B, StableLM Zephyr (not the 12B)"
    defaults = Llama.but(
        num_key_value_heads=32,
        max_position_embeddings=4096,
        layer_norm_eps=1e-5,
        partial_rotary_factor=0.25,
        eos_token_id=0,
    )

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        larger = dict.fromkeys(("use_parallel_residual", "qk_layernorm"), (None, False))
        self.config.fields.only(larger, "use a model of 3B or less, which has neither")
        return super().decoder()

    def norm(self, name: str, size: int) -> Norm:
        """Returns the normalization of that name."""
        return LayerNorm(f"{name}.weight", size, self.config.norm_eps, bias=f"{name}.bias")

    def has_bias(self, name: str) -> bool:
        """Returns whether a projection has a bias; only those of q, k and v may."""
        return self.config.fields.flag("use_qkv_bias") and name.endswith(QKV)
