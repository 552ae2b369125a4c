"""Hunyuan (dense models, version 1)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.bundle.sublayers import DEFAULT_ROPE
from edgespec.models.families.llama import Llama
from edgespec.models.layers.rope import DEFAULT_THETA, rope_from_config

if TYPE_CHECKING:
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.rope import Rope
    from edgespec.models.layers.sublayers import Attention


class Hunyuan(Llama):
    """Llama with heads that are normalized after RoPE, whose base may be stretched."""

    models = "Hunyuan 0.5B, 1.8B, 4B and 7B"
    defaults = Llama.but(
        rms_norm_eps=1e-5,
        use_qk_norm=True,
    )
    norms_of_heads = ("query_layernorm", "key_layernorm")

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        fields = self.config.fields
        fields.only({"use_cla": (None, False)}, "layers that share keys and values are not read")
        fields.only({"use_qk_norm": (True,)}, "only models with norms of heads are read")
        return super().decoder()

    def ropes(self) -> dict[str, Rope]:
        """Returns the rotation table.

        `dynamic` with an `alpha` is none: its base is stretched for texts of any length (NTK).
        """
        fields = self.config.fields
        head_dim = self.config.head_dim
        name = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
        scaling = fields.group(name)
        kind = scaling.get("rope_type") or scaling.get("type")
        if kind != "dynamic" or not scaling.get("alpha"):
            return super().ropes()
        theta = scaling.number("rope_theta", fields.number("rope_theta", DEFAULT_THETA))
        theta *= scaling.number("alpha") ** (head_dim / (head_dim - 2))
        fixed = {"rope_type": "default", "rope_theta": theta}
        return {DEFAULT_ROPE: rope_from_config(fields.changed(**{name: fixed}), head_dim)}

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        return replace(super().attention(index), norm_after_rope=True)

    def has_bias(self, name: str) -> bool:
        """Returns whether a projection has a bias; those of the MLP have none."""
        return self.config.attention_bias and ".mlp." not in name
