"""Configs of models in GGUF files that have DeepSeek's experts, or attend to latent vectors.

Where they do, sizes of keys and values are those of latents, and those of heads have other names.
"""

from __future__ import annotations

from edgespec.models.formats.gguf.config import ConfigReader

_MAVERICK = 128  # experts
_SIGMOID = 2  # in `expert_gating_func`


class MixtralReader(ConfigReader):
    """Llama and Mistral, which are Mixtral where the file has experts."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        if not self.get("expert_count"):
            return {}
        return {
            "model_type": "mixtral",
            "num_local_experts": self.integer("expert_count"),
            "num_experts_per_tok": self.integer("expert_used_count"),
        }


class Llama4Reader(ConfigReader):
    """Llama 4, of which the model of most experts alone has no norms of heads, as in llama.cpp."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        return {"use_qk_norm": self.get("expert_count") != _MAVERICK}


class PhiMoeReader(ConfigReader):
    """Phi-3.5-MoE."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        return {"lm_head_bias": bool(self.shape("output.bias"))}


class RoutedReader(ConfigReader):
    """DeepSeek's experts, behind the first layers."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        name = "leading_dense_block_count"
        dense = self.get(name) or 0
        if not isinstance(dense, int):
            raise self.metadata.invalid(f"{self.kind}.{name}", "must be a number of layers")
        return {
            **super().special(),
            "n_group": self.integer("expert_group_count", 1),
            "topk_group": self.integer("expert_group_used_count", 1),
            "norm_topk_prob": bool(self.get("expert_weights_norm")),
            "routed_scaling_factor": self.get("expert_weights_scale") or 1.0,
            "first_k_dense_replace": dense,
        }


class LatentReader(ConfigReader):
    """Attention to latents."""

    @property
    def head_dim(self) -> int:
        """Size of the part of a head that is rotated."""
        return self.integer("rope.dimension_count")

    def check_sizes(self) -> None:
        """Checks that keys are larger than their rotated part.

        Raises:
            CheckpointError: They are not.
        """
        if self.key_size <= self.head_dim:
            rule = f"must exceed rope.dimension_count={self.head_dim}"
            raise self.metadata.invalid(f"{self.kind}.attention.key_length_mla", rule)

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        return {
            **super().special(),
            "q_lora_rank": self.get("attention.q_lora_rank") or None,
            "kv_lora_rank": self.integer("attention.kv_lora_rank"),
            "qk_rope_head_dim": self.head_dim,
            "qk_nope_head_dim": self.key_size - self.head_dim,
            "v_head_dim": self.integer(
                "attention.value_length_mla",
                self.integer("attention.value_length", self.value_size),
            ),
        }

    @property
    def key_size(self) -> int:
        """Size of a head's key; the first files have no latents for keys."""
        return self.integer("attention.key_length_mla", self.integer("attention.key_length"))

    @property
    def value_size(self) -> int:
        """Size of a head's value where the file does not say it."""
        return self.key_size


class RoutedLatentReader(LatentReader, RoutedReader):
    """DeepSeek's computation: attention to latents, and experts behind the first layers."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        found = super().special()
        dense = found["first_k_dense_replace"]
        assert isinstance(dense, int)
        kinds = ["dense" if layer < dense else "sparse" for layer in range(self.layers)]
        return {
            **found,
            "moe_intermediate_size": self.integer("expert_feed_forward_length"),
            "n_routed_experts": self.integer("expert_count"),
            "n_shared_experts": self.integer("expert_shared_count"),
            "num_experts_per_tok": self.integer("expert_used_count"),
            "mlp_layer_types": kinds,
        }


class DeepseekReader(RoutedLatentReader):
    """Models of one name in GGUF that choose experts by softmax, or else by sigmoids."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`; the second version of DeepSeek chooses by softmax.

        Raises:
            UnsupportedModelError: Experts are chosen by something else.
        """
        name = "expert_gating_func"
        found = super().special()
        if self.get(name) == _SIGMOID:
            return found
        # Early files of later models do not say how experts are chosen, and have a bias for it.
        if self._anywhere("exp_probs_b.bias"):
            raise self.metadata.unsupported(f"{self.kind}.{name}", "use another file of the model")
        return {**found, "model_type": "deepseek_v2"}
