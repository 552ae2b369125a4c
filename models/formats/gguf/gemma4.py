"""Configs of Gemma 4 in GGUF files, whose heads, widths and angles differ between layers."""

from __future__ import annotations

from edgespec.models.formats.gguf.config import ConfigReader

_FULL, _SLIDING = "full_attention", "sliding_attention"
_LIMIT = "final_logit_softcapping"
_STILL = 1e20  # angles that are divided by more are those of dimensions that are not rotated


class Gemma4Reader(ConfigReader):
    """Gemma 4: fields are of layers without a window, and further ones of those with one."""

    @property
    def head_dim(self) -> int:
        """Size of a head in layers with a window."""
        return self.integer("attention.key_length_swa")

    def key_heads(self) -> list[int]:
        """See `ConfigReader`; of each layer its own number."""
        return self.by_layer("attention.head_count_kv")

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        kinds = self.get("attention.sliding_window_pattern")
        if not isinstance(kinds, list) or len(kinds) != self.layers:
            rule = f"must be a list of {self.layers} layers"
            raise self.metadata.invalid(f"{self.kind}.attention.sliding_window_pattern", rule)
        if self.integer("rope.dimension_count_swa", self.head_dim) != self.head_dim:
            name = f"{self.kind}.rope.dimension_count_swa"
            raise self.metadata.unsupported(name, f"use a file where it is {self.head_dim}")
        heads = self.key_heads()
        widths = self.by_layer("feed_forward_length")
        full = [layer for layer, windowed in enumerate(kinds) if not windowed]
        own = {
            str(layer): {
                "num_key_value_heads": heads[layer],
                "head_dim": self.integer("attention.key_length"),
            }
            for layer in full
        }
        size, shared = (
            self.get(name) or None
            for name in ("embedding_length_per_layer_input", "attention.shared_kv_layers")
        )
        limited = self.get(_LIMIT) is not None
        return {
            "num_key_value_heads": max(
                (each for each, windowed in zip(heads, kinds, strict=True) if windowed),
                default=heads[0],
            ),
            "per_layer_config": own,
            "intermediate_size": widths[0],
            "use_double_wide_mlp": widths[-1] > widths[0],
            "num_kv_shared_layers": shared,
            "hidden_size_per_layer_input": size,
            "vocab_size_per_layer_input": (self.shape("per_layer_token_embd.weight") or (0,))[0],
            "attention_k_eq_v": any(
                self.shape(f"blk.{layer}.attn_k.weight")
                and not self.shape(f"blk.{layer}.attn_v.weight")
                for layer in full
            ),
            _LIMIT: self.metadata.number(f"{self.kind}.{_LIMIT}") if limited else None,
            "rope_scaling": None,
            "rope_parameters": self._angles(),
            "partial_rotary_factor": 1.0,
            **self._experts(),
        }

    def _angles(self) -> dict[str, object]:
        """RoPE of both kinds of layers; without a window, only a part of each head is rotated."""
        factors = self.factors("rope_freqs.weight") or [1.0]
        rotated = sum(each < _STILL for each in factors) / len(factors)
        base = f"{self.kind}.rope.freq_base"
        return {
            _SLIDING: {"rope_type": "default", "rope_theta": self.metadata.number(f"{base}_swa")},
            _FULL: {
                "rope_type": "proportional",
                "rope_theta": self.metadata.number(base),
                "partial_rotary_factor": rotated,
            },
        }

    def _experts(self) -> dict[str, object]:
        if not self.get("expert_count"):
            return {}
        return {
            "enable_moe_block": True,
            "num_experts": self.integer("expert_count"),
            "top_k_experts": self.integer("expert_used_count"),
            "moe_intermediate_size": self.integer("expert_feed_forward_length"),
        }
