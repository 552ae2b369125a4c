"""IQuest-Coder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.llama import Llama

if TYPE_CHECKING:
    from edgespec.models.layers.decoder import Decoder


class IQuestCoder(Llama):
    """Llama with defaults of its own."""

    models = "IQuest-Coder-V1"
    defaults = Llama.but(
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
    )

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        none = (None, False)
        allowed = {"clip_qkv": (None,), "use_sliding_window": none}
        self.config.fields.only(allowed, "use a model without it")
        return super().decoder()
