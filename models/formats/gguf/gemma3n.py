"""Configs of Gemma 3n in GGUF files."""

from __future__ import annotations

from statistics import NormalDist

from edgespec.models.formats.gguf.config import ConfigReader

_LIMIT = 30.0  # of logits: files do not say so, llama.cpp goes by the model
_LOCAL_BASE = 10_000.0


class Gemma3nReader(ConfigReader):
    """Gemma 3n: how many deviations gates must exceed their mean by stands for their sparsity."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        name = "activation_sparsity_scale"
        base = f"{self.kind}.rope.freq_base"
        scales = self.get(name)
        if not isinstance(scales, list) or not all(isinstance(each, float) for each in scales):
            rule = f"must be a list of {self.layers} numbers"
            raise self.metadata.invalid(f"{self.kind}.{name}", rule)
        local = self.metadata.number(f"{base}_swa", _LOCAL_BASE)
        return {
            "intermediate_size": self.by_layer("feed_forward_length"),
            "activation_sparsity_pattern": [NormalDist().cdf(each) for each in scales],
            "num_kv_shared_layers": self.get("attention.shared_kv_layers") or None,
            "hidden_size_per_layer_input": self.integer("embedding_length_per_layer_input"),
            "vocab_size_per_layer_input": (self.shape("per_layer_token_embd.weight") or (0,))[0],
            "altup_num_inputs": self.integer("altup.num_inputs"),
            "altup_active_idx": self.get("altup.active_idx") or 0,
            "altup_correct_scale": bool(self.shape("blk.0.altup_correct_scale.weight")),
            "laurel_rank": (self.shape("blk.0.laurel_l.weight") or (0,))[0],
            "final_logit_softcapping": self.metadata.number(
                f"{self.kind}.final_logit_softcapping", _LIMIT
            ),
            "rope_scaling": None,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": local},
                "full_attention": {
                    "rope_type": "default",
                    "rope_theta": self.metadata.number(base),
                },
            },
        }
