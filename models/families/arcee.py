"""Arcee's AFM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.llama import Llama
from edgespec.models.layers.sublayers import PlainMlp

if TYPE_CHECKING:
    from edgespec.models.layers.decoder import Decoder


class Arcee(Llama):
    """Llama with MLPs without gates."""

    models = "AFM-4.5B"
    defaults = Llama.but(
        hidden_act="relu2",
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        eos_token_id=128001,
    )

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        self.config.fields.only({"hidden_act": ("relu2",)}, "only relu2 is")
        return super().decoder()

    def feed_forward(self, index: int) -> PlainMlp:
        """Returns the MLP of a layer."""
        config = self.config
        name = f"{self.layers}.{index}"
        hidden = config.hidden_size
        inner = config.intermediate_size
        return PlainMlp(
            norm=self.norm(f"{name}.{self.norms_before[1]}", hidden),
            up=self.linear(f"{name}.mlp.up_proj", hidden, inner),
            down=self.linear(f"{name}.mlp.down_proj", inner, hidden),
        )
