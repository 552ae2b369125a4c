"""Configs of models in GGUF files that attend to latent vectors.

Sizes of keys and values are those of latents there, and those of heads have names of their own.
"""

from __future__ import annotations

from edgespec.models.gguf.config import ConfigReader


class LatentReader(ConfigReader):
    """DeepSeek's computation: attention to latents, and experts behind the first layers."""

    @property
    def head_dim(self) -> int:
        """Size of the part of a head that is rotated."""
        return self.integer("rope.dimension_count")

    def check_sizes(self) -> None:
        """Checks that keys are larger than their rotated part.

        Raises:
            CheckpointError: They are not.
        """
        if self._key_size <= self.head_dim:
            rule = f"must exceed rope.dimension_count={self.head_dim}"
            raise self.metadata.invalid(f"{self.kind}.attention.key_length_mla", rule)

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        dense, scale = (
            self.get(name) or 0 for name in ("leading_dense_block_count", "expert_weights_scale")
        )
        if not isinstance(dense, int):
            name = f"{self.kind}.leading_dense_block_count"
            raise self.metadata.invalid(name, "must be a number of layers")
        kinds = ["dense" if layer < dense else "sparse" for layer in range(self.layers)]
        return {
            "q_lora_rank": self.get("attention.q_lora_rank") or None,
            "kv_lora_rank": self.integer("attention.kv_lora_rank"),
            "qk_rope_head_dim": self.head_dim,
            "qk_nope_head_dim": self._key_size - self.head_dim,
            "v_head_dim": self.integer(
                "attention.value_length_mla", self.integer("attention.value_length", self._key_size)
            ),
            "moe_intermediate_size": self.integer("expert_feed_forward_length"),
            "n_routed_experts": self.integer("expert_count"),
            "n_shared_experts": self.integer("expert_shared_count"),
            "num_experts_per_tok": self.integer("expert_used_count"),
            "n_group": self.integer("expert_group_count", 1),
            "topk_group": self.integer("expert_group_used_count", 1),
            "norm_topk_prob": bool(self.get("expert_weights_norm")),
            "routed_scaling_factor": scale or 1.0,
            "first_k_dense_replace": dense,
            "mlp_layer_types": kinds,
        }

    @property
    def _key_size(self) -> int:
        """Size of a head's key; the first files have no latents for keys."""
        return self.integer("attention.key_length_mla", self.integer("attention.key_length"))
