"""SmolLM3."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.config import check_windows_listed
from edgespec.models.families.llama import Llama

if TYPE_CHECKING:
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.sublayers import Attention


class SmolLm3(Llama):
    """Llama without RoPE in some layers."""

    defaults = Llama.but(
        num_key_value_heads=4,
        max_position_embeddings=32768,
        use_sliding_window=False,
        no_rope_layer_interval=4,
        rope_theta=2_000_000.0,
        tie_word_embeddings=True,
        eos_token_id=128_001,
    )

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        check_windows_listed(self.config.fields)
        return super().decoder()

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        attention = super().attention(index)
        return attention if self._turns(index) else replace(attention, rope="")

    def _turns(self, index: int) -> bool:
        """Returns whether a layer has RoPE, by a list, or else all but every n-th."""
        config = self.config
        listed = config.fields.get("no_rope_layers")
        if listed is None:
            return (index + 1) % config.fields.integer("no_rope_layer_interval") > 0
        if not isinstance(listed, list) or len(listed) < config.num_layers:
            raise config.fields.invalid(
                "no_rope_layers", f"must be a list of {config.num_layers} layers"
            )
        return bool(listed[index])  # 1 where there is RoPE, in spite of the name
