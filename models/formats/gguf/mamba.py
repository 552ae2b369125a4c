"""Configs of models in GGUF files that have Mamba-2 layers."""

from __future__ import annotations

from edgespec.models.formats.gguf.config import ConfigReader
from edgespec.models.formats.gguf.routed import RoutedReader


class GraniteHybridReader(ConfigReader):
    """Granite 4: layers that have no key heads are state spaces."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        inner = self.integer("ssm.inner_size")
        hidden = self.integer("embedding_length")
        if inner % hidden:
            rule = f"must be a multiple of embedding_length={hidden}"
            raise self.metadata.invalid(f"{self.kind}.ssm.inner_size", rule)
        width = self.integer("feed_forward_length")
        return {
            "layer_types": ["attention" if each else "mamba" for each in self.key_heads()],
            "position_embedding_type": "rope" if self.get("rope.scaling.finetuned") else None,
            "mamba_n_heads": self.integer("ssm.time_step_rank"),
            "mamba_n_groups": self.integer("ssm.group_count"),
            "mamba_d_state": self.integer("ssm.state_size"),
            "mamba_d_conv": self.integer("ssm.conv_kernel"),
            "mamba_expand": inner // hidden,
            "num_local_experts": self.get("expert_count"),
            "num_experts_per_tok": self.get("expert_used_count"),
            "shared_intermediate_size": self.integer("expert_shared_feed_forward_length", width),
        }


class NemotronReader(RoutedReader):
    """Nemotron-H: layers have key heads, or an MLP's or experts' width, or are state spaces."""

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        inner = self.integer("ssm.inner_size")
        heads = self.integer("ssm.time_step_rank")
        if inner % heads:
            rule = f"must be a multiple of ssm.time_step_rank={heads}"
            raise self.metadata.invalid(f"{self.kind}.ssm.inner_size", rule)
        parts = zip(self.key_heads(), self.by_layer("feed_forward_length"), strict=True)
        wide = "moe" if self.get("expert_count") else "mlp"
        types = ["attention" if keys else wide if width else "mamba" for keys, width in parts]
        return {
            "layers_block_type": types,
            "mamba_head_dim": inner // heads,
            "partial_rotary_factor": 1.0,  # of nothing
            **(super().special() | self._experts() if wide == "moe" else {}),
        }

    def _experts(self) -> dict[str, object]:
        width = self.integer("expert_feed_forward_length")
        return {
            "n_routed_experts": self.integer("expert_count"),
            "num_experts_per_tok": self.integer("expert_used_count"),
            "moe_intermediate_size": width,
            "moe_shared_expert_intermediate_size": self.integer(
                "expert_shared_feed_forward_length", width * self.integer("expert_shared_count", 1)
            ),
            "moe_latent_size": self.get("moe_latent_size") or None,
        }
