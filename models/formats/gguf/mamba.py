"""Models in GGUF files that have Mamba-2 layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.formats.gguf.config import ConfigReader
from edgespec.models.formats.gguf.names import EXPERT, GRANITE, Naming
from edgespec.models.formats.gguf.routed import RoutedReader

if TYPE_CHECKING:
    from collections.abc import Mapping


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


_MAMBA = {
    "ssm_in": "in_proj",
    "ssm_conv1d": "conv1d",
    "ssm_dt.bias": "dt_bias",
    "ssm_a": "A_log",
    "ssm_d": "D",
    "ssm_norm": "norm",
    "ssm_out": "out_proj",
}
_NEMOTRON = Naming(
    "nemotron_h",
    {
        **{place: f"mixer.{name}" for place, name in _MAMBA.items()},
        "attn_norm": "norm",
        **{f"attn_{name}": f"mixer.{name}_proj" for name in "qkv"},
        "attn_output": "mixer.o_proj",
        "ffn_up": "mixer.up_proj",
        "ffn_down": "mixer.down_proj",
        "ffn_gate_inp": "mixer.gate",
        "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
        "ffn_up_exps": f"mixer{EXPERT}up_proj",
        "ffn_down_exps": f"mixer{EXPERT}down_proj",
        "ffn_up_shexp": "mixer.shared_experts.up_proj",
        "ffn_down_shexp": "mixer.shared_experts.down_proj",
        "ffn_latent_down": "mixer.fc1_latent_proj",
        "ffn_latent_up": "mixer.fc2_latent_proj",
    },
    layers="backbone.layers",
    model={"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f"},
    integers={
        "mamba_num_heads": "ssm.time_step_rank",
        "n_groups": "ssm.group_count",
        "ssm_state_size": "ssm.state_size",
        "conv_kernel": "ssm.conv_kernel",
    },
    numbers={"layer_norm_epsilon": "attention.layer_norm_rms_epsilon"},
    present={
        "mlp_bias": "ffn_up.bias",
        "use_bias": "ssm_in.bias",
        "use_conv_bias": "ssm_conv1d.bias",
    },
)

MAMBAS: Mapping[str, Naming] = {
    "granitehybrid": Naming(
        "granitemoehybrid",
        {
            **{place: f"mamba.{name}" for place, name in _MAMBA.items()},
            "ffn_gate_inp": "block_sparse_moe.router.layer",
            "ffn_gate_shexp": "mlp.gate_proj",
            "ffn_up_shexp": "mlp.up_proj",
            "ffn_down_shexp": "mlp.down_proj",
        },
        interleaved=True,
        numbers=GRANITE,
        present={"mamba_conv_bias": "ssm_conv1d.bias", "mamba_proj_bias": "ssm_in.bias"},
    ),
    "falcon-h1": Naming(
        "falcon_h1",
        {
            **{place: f"mamba.{name}" for place, name in _MAMBA.items()},
            # Converters leave out `.weight`.
            **dict.fromkeys(("ffn_norm", "ffn_norm.weight"), "pre_ff_layernorm.weight"),
            "ffn_gate": "feed_forward.gate_proj",
            "ffn_up": "feed_forward.up_proj",
            "ffn_down": "feed_forward.down_proj",
        },
        model={"output_norm": "model.final_layernorm"},
        integers={
            "mamba_d_ssm": "ssm.inner_size",
            "mamba_n_heads": "ssm.time_step_rank",
            "mamba_n_groups": "ssm.group_count",
            "mamba_d_state": "ssm.state_size",
            "mamba_d_conv": "ssm.conv_kernel",
        },
        present={
            "mlp_bias": "ffn_gate.bias",
            "mamba_conv_bias": "ssm_conv1d.bias",
            "mamba_proj_bias": "ssm_in.bias",
            "projectors_bias": "ssm_out.bias",
            "mamba_rms_norm": "ssm_norm.weight",
        },
        constants={"mamba_norm_before_gate": False},
    ),
    "nemotron_h": _NEMOTRON,
    "nemotron_h_moe": replace(
        _NEMOTRON, present={**_NEMOTRON.present, "mlp_bias": "ffn_up_shexp.bias"}
    ),
}
"""Their architectures, see `ARCHITECTURES`."""
