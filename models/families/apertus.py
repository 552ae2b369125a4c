"""Apertus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.models.families.llama import Llama
from edgespec.models.layers.elements import Xielu
from edgespec.models.layers.sublayers import PlainMlp

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder

# What transformers assumes where the config says nothing.
_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12_000_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


class Apertus(Llama):
    """Llama with norms of heads, and MLPs without gates whose activation is learned."""

    models = "Apertus 8B and 70B"
    defaults = Llama.but(
        hidden_act="xielu",
        max_position_embeddings=65_536,
        rms_norm_eps=1e-5,
        rope_theta=12_000_000.0,
    )
    norms_before = ("attention_layernorm", "feedforward_layernorm")
    norms_of_heads = ("q_norm", "k_norm")

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with parameters of RoPE."""
        told = fields.get("rope_parameters") or fields.get("rope_scaling")
        return fields if told else fields.changed(rope_parameters=_ROPE)

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        self.config.fields.only({"hidden_act": ("xielu",)}, "only xielu is")
        return super().decoder()

    def feed_forward(self, index: int) -> PlainMlp:
        """Returns the MLP of a layer."""
        name = f"{self.layers}.{index}"
        hidden = self.config.hidden_size
        inner = self.config.intermediate_size
        learned = (f"{name}.mlp.act_fn.{each}" for each in ("alpha_p", "alpha_n", "beta", "eps"))
        return PlainMlp(
            norm=self.norm(f"{name}.{self.norms_before[1]}", hidden),
            up=self.linear(f"{name}.mlp.up_proj", hidden, inner),
            down=self.linear(f"{name}.mlp.down_proj", inner, hidden),
            activation=Xielu(*learned),
        )
