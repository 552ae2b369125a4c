"""Seed-OSS."""

from __future__ import annotations

from edgespec.models.families.llama import QKV, Llama


class SeedOss(Llama):
    """Llama whose output projection of attention has a bias by a field of its own."""

    models = "Seed-OSS-36B"
    defaults = Llama.but(
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=524_288,
        attention_bias=True,
    )

    def has_bias(self, name: str) -> bool:
        """Returns whether the projection of that name has a bias."""
        if name.endswith(".self_attn.o_proj"):
            return self.config.fields.flag("attention_out_bias")
        return self.config.attention_bias if name.endswith(QKV) else self.config.mlp_bias
