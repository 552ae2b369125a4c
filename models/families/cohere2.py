"""Cohere 2, as Command R7B and Command A."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.partial_rotation import PartialRotation
from edgespec.models.layers.elements import LayerNorm
from edgespec.models.layers.sublayers import ParallelBlock

if TYPE_CHECKING:
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.elements import Norm
    from edgespec.models.layers.sublayers import Attention


class Cohere2(PartialRotation):
    """Attention and MLP beside each other, and RoPE only in layers with a window."""

    models = "Command R7B, Command A"
    defaults = PartialRotation.but(
        max_position_embeddings=8192,
        layer_norm_eps=1e-5,
        logit_scale=0.0625,
        sliding_window=4096,
        sliding_window_pattern=4,
        tie_word_embeddings=True,
        eos_token_id=255_001,
    )
    norms_before = ("", "")
    interleaved = True

    def decoder(self) -> Decoder:
        """Returns the model's description; its last norm scales the logits."""
        decoder = self.of_layers((self.block(index),) for index in range(self.config.num_layers))
        factor = self.config.fields.number("logit_scale")
        return replace(decoder, norm=replace(decoder.norm, factor=factor))

    def block(self, index: int) -> ParallelBlock:
        """Returns a layer."""
        norm = self.norm(f"{self.layers}.{index}.input_layernorm", self.config.hidden_size)
        return ParallelBlock(norm, (self.attention(index), self.mlp(index)))

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        attention = super().attention(index)
        turned = self.config.windows[index] is not None
        return attention if turned else replace(attention, rope="")

    def norm(self, name: str, size: int) -> Norm:
        """Returns the normalization of that name."""
        return LayerNorm(f"{name}.weight", size, self.config.norm_eps, bias=None)
