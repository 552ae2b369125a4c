"""Small random checkpoints of every architecture, as transformers saves them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    GraniteConfig,
    GraniteForCausalLM,
    Mistral4ForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2_5_VLTextConfig,
    Qwen2_5_VLTextModel,
    Qwen3VLMoeTextConfig,
    Qwen3VLMoeTextModel,
    Qwen3VLTextConfig,
    Qwen3VLTextModel,
)
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLPreTrainedModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLPreTrainedModel
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoePreTrainedModel


class MiniCPMConfig(GraniteConfig):
    """Of MiniCPM, whose code is beside its weights: Granite with factors under other names."""

    model_type = "minicpm"
    tie_word_embeddings: bool = True
    scale_emb: float = 1.0
    scale_depth: float = 1.0
    dim_model_base: int = 1

    def __post_init__(self, **fields: Any) -> None:
        self.embedding_multiplier = self.scale_emb
        self.residual_multiplier = self.scale_depth / self.num_hidden_layers**0.5
        self.logits_scaling = self.hidden_size / self.dim_model_base
        head_dim = fields.get("head_dim") or self.hidden_size // self.num_attention_heads
        self.attention_multiplier = head_dim**-0.5
        super().__post_init__(**fields)


class MiniCPMForCausalLM(GraniteForCausalLM):
    """MiniCPM."""

    config_class = MiniCPMConfig


CONFIG_MAPPING.register("minicpm", MiniCPMConfig)


class TextOfQwenVL:
    """A text part of Qwen-VL, which transformers has no model of."""

    text_model: ClassVar[type]
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = self.text_model(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **options: Any) -> CausalLMOutput:
        rows = self.model(input_ids, **options).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(rows))


class Qwen2_5VLForCausalLM(TextOfQwenVL, Qwen2_5_VLPreTrainedModel):  # noqa: N801
    """Of Qwen2.5-VL."""

    config_class, text_model = Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel


class Qwen3VLForCausalLM(TextOfQwenVL, Qwen3VLPreTrainedModel):
    """Without experts."""

    config_class, text_model = Qwen3VLTextConfig, Qwen3VLTextModel


class Qwen3VLMoeForCausalLM(TextOfQwenVL, Qwen3VLMoePreTrainedModel):
    """With experts."""

    config_class, text_model = Qwen3VLMoeTextConfig, Qwen3VLMoeTextModel


ARCHITECTURES = (
    "apertus", "arcee", "bitnet", "cohere2", "cwm", "deepseek_v2", "ernie4_5", "ernie4_5_moe",
    "exaone4", "falcon_h1", "gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text",
    "gemma4_unified_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt_oss", "granite",
    "granitemoe", "granitemoehybrid", "hunyuan_v1_dense", "hyperclovax", "internlm3", "iquestcoder",
    "kimi_linear", "lfm2", "lfm2_moe", "llama", "llama4_text", "minicpm", "minicpm3", "ministral",
    "ministral3", "mistral", "mistral4", "mixtral", "nemotron_h", "olmo2", "olmo3", "olmoe", "phi3",
    "phimoe", "qwen2", "qwen2_5_vl_text", "qwen2_moe", "qwen3", "qwen3_5_moe_text", "qwen3_5_text",
    "qwen3_moe", "qwen3_next", "qwen3_vl_moe_text", "qwen3_vl_text", "seed_oss", "smollm3",
    "stablelm", "vaultgemma",
)  # fmt: skip
_MODELS = {  # those that transformers does not find by their configs
    "minicpm": MiniCPMForCausalLM,
    "mistral4": Mistral4ForCausalLM,
    "qwen2_5_vl_text": Qwen2_5VLForCausalLM,
    "qwen3_vl_moe_text": Qwen3VLMoeForCausalLM,
    "qwen3_vl_text": Qwen3VLForCausalLM,
}

RECURRENT = ("falcon_h1", "granitemoehybrid", "kimi_linear", "lfm2", "nemotron_h", "qwen3_5_text")
"""Those with recurrent layers and without experts."""

WITH_EXPERTS = {"kimi_linear_moe": "kimi_linear", "nemotron_h_moe": "nemotron_h"}
"""Names for models with experts of architectures that have some without, too."""

RECURRENT_MIXTURES = (
    "kimi_linear_moe",
    "lfm2_moe",
    "nemotron_h_moe",
    "qwen3_5_moe_text",
    "qwen3_next",
)
"""Those with both."""

MIXTURES = (
    "deepseek_v2", "ernie4_5_moe", "glm4_moe", "glm4_moe_lite", "gpt_oss", "granitemoe",
    "llama4_text", "mistral4", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe",
    "qwen3_vl_moe_text", *RECURRENT_MIXTURES,
)  # fmt: skip
"""The architectures whose layers are mixtures of experts."""

# heads * head_dim is not the hidden size, one key head serves all, 331 is no multiple of 32;
# every matmul's inner size is a multiple of 32, so that block quantization has whole blocks.
ODD_SHAPES: dict[str, Any] = {
    "vocab_size": 331,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "tie_word_embeddings": False,
}

_MIXED = ["sliding_attention", "full_attention"]

# Some experts are chosen by no row of a short text.
_EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 96,
    "norm_topk_prob": True,
}

# Attention to latents; values are larger than queries and keys without what is rotated.
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32, "head_dim": 32, "v_head_dim": 48, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "moe_intermediate_size": 96,
}  # fmt: skip

# Of Qwen3.5: linear attention around the other.
_DELTA: dict[str, Any] = {
    "num_hidden_layers": 3, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_key_head_dim": 16, "linear_value_head_dim": 8, "num_key_value_heads": 2,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
        "mrope_section": [2, 2, 2],
    },
}  # fmt: skip

# Of Kimi Linear: the same, with latents, and decays of keys.
_KIMI: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_head_dim": 32,
    "linear_num_heads": 4,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
    "q_lora_rank": None,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 48,
}

# Of Qwen3-VL: parts of a head turn by a row's place in a picture.
_SECTIONS: dict[str, Any] = {
    "rope_type": "default", "rope_theta": 1e6, "mrope_section": [6, 3, 3],
    "mrope_interleaved": True,
}  # fmt: skip

# What a family's two layers need so that all that is special in it matters.
SPECIAL: dict[str, dict[str, Any]] = {
    "apertus": {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        },
    },
    "bitnet": {"hidden_size": 96},  # that of all heads
    "cohere2": {
        "sliding_window": 40, "layer_types": _MIXED, "layer_norm_eps": 1e-3, "logit_scale": 0.75,
        "hidden_size": 96, "pad_token_id": 0,  # heads of 24
    },
    "cwm": {
        "sliding_window": 40, "layer_types": _MIXED[::-1], "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        },
    },
    "deepseek_v2": {
        **_LATENT, "q_lora_rank": None, "first_k_dense_replace": 1, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 64,
        },
    },
    "ernie4_5_moe": {
        "moe_num_experts": 8, "moe_k": 3, "moe_num_shared_experts": 2, "moe_intermediate_size": 96,
    },
    "exaone4": {"sliding_window": 40, "layer_types": _MIXED},
    "falcon_h1": {
        "num_key_value_heads": 2, "mamba_d_ssm": 96, "mamba_n_heads": 8, "mamba_d_head": 12,
        "mamba_n_groups": 2, "mamba_d_state": 24, "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.6, "key_multiplier": 0.7, "attention_in_multiplier": 1.2,
        "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.3, "ssm_out_multiplier": 0.3,
        "mlp_multipliers": [0.75, 1.4], "ssm_multipliers": [0.8, 0.6, 0.9, 0.7, 0.5],
    },
    # Limits so narrow that most numbers are beyond.
    "gemma2": {
        "sliding_window": 40, "query_pre_attn_scalar": 48,
        "attn_logit_softcapping": 0.7, "final_logit_softcapping": 0.9,
    },
    "gemma3n_text": {
        "num_hidden_layers": 4, "sliding_window": 40, "layer_types": _MIXED * 2,
        "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 300, "laurel_rank": 32,
        "hidden_size_per_layer_input": 32, "altup_num_inputs": 3,
        "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0], "final_logit_softcapping": 0.9,
    },
    # Layers 2 and 3 read keys and values of 0 and 1.
    "gemma4_text": {
        "num_hidden_layers": 4, "sliding_window": 40, "layer_types": _MIXED * 2,
        "global_head_dim": 32, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
        "vocab_size_per_layer_input": 331, "hidden_size_per_layer_input": 32,
    },
    "gemma4_unified_text": {
        "sliding_window": 40, "layer_types": _MIXED, "attention_k_eq_v": True,
        "num_key_value_heads": 2, "num_global_key_value_heads": 1, "global_head_dim": 32,
    },
    "glm": {"pad_token_id": 0},
    "glm4": {"pad_token_id": 0},
    "glm4_moe": {
        "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 96,
        "use_qk_norm": True, "routed_scaling_factor": 1.5,
    },
    "glm4_moe_lite": {**_LATENT, "routed_scaling_factor": 1.8},
    "granite": {
        "embedding_multiplier": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.4,
        "logits_scaling": 0.6,
    },
    "granitemoe": {
        "num_local_experts": 8, "num_experts_per_tok": 3, "embedding_multiplier": 3.0,
        "attention_multiplier": 0.3, "residual_multiplier": 0.4, "logits_scaling": 0.6,
    },
    "granitemoehybrid": {
        "num_hidden_layers": 3, "layer_types": ["mamba", "full_attention", "mamba"],
        "num_key_value_heads": 2, "num_local_experts": 0, "shared_intermediate_size": 96,
        "attention_multiplier": 0.3, "residual_multiplier": 0.4, "logits_scaling": 0.6,
        "mamba_n_heads": 8, "mamba_d_state": 24,
    },
    "hyperclovax": {
        "hidden_size": 96, "embedding_multiplier": 3.0, "attention_multiplier": 0.3,
        "residual_multiplier": 0.4, "logits_scaling": 0.6,
    },
    "kimi_linear": {**_KIMI, "mlp_layer_types": ["dense"] * 3},
    "kimi_linear_moe": {
        **_KIMI, "mlp_layer_types": ["dense", "sparse", "sparse"], "num_local_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": 96, "routed_scaling_factor": 1.5,
    },
    "lfm2": {
        "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"],
        "block_multiple_of": 32, "norm_eps": 1e-5,
    },
    "lfm2_moe": {
        "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"],
        "num_dense_layers": 1, "norm_eps": 1e-5, "routed_scaling_factor": 1.5, **_EXPERTS,
    },
    "llama4_text": {
        "no_rope_layers": [1, 0], "num_local_experts": 8, "intermediate_size": 96,
        "intermediate_size_mlp": 160, "floor_scale": 8192,
    },
    "minicpm": {"scale_emb": 3.0, "scale_depth": 0.7, "dim_model_base": 32},
    "minicpm3": {
        "num_key_value_heads": 4, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
    },
    "ministral": {"sliding_window": 40, "layer_types": _MIXED},
    "ministral3": {
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 512,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "mistral": {"sliding_window": None},
    "mistral4": {
        **_LATENT, "head_dim": 64, "first_k_dense_replace": 1, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 512,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 3},
    "nemotron_h": {
        "layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba"],
        "mamba_num_heads": 6, "mamba_head_dim": 12, "n_groups": 3, "ssm_state_size": 24,
    },
    "nemotron_h_moe": {
        "layers_block_type": ["mamba", "moe", "attention", "moe", "mamba"],
        "mamba_num_heads": 6, "mamba_head_dim": 12, "n_groups": 3, "ssm_state_size": 24,
        "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 96,
        "moe_shared_expert_intermediate_size": 128, "routed_scaling_factor": 2.5,
    },
    "olmo3": {
        "sliding_window": 40, "layer_types": _MIXED,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {
                "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0,
                "original_max_position_embeddings": 64,
            },
        },
    },
    # Heads that are partly rotated, as in Phi-4-mini.
    "phi3": {
        "pad_token_id": 0,
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75},
    },
    # Experts of which several are within reach of the best.
    "phimoe": {
        "num_local_experts": 8, "router_jitter_noise": 0.3, "attention_bias": True,
        "lm_head_bias": True, "hidden_size": 96,  # heads of 24
    },
    "qwen2_5_vl_text": {
        "head_dim": 16, "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2],
        },
    },
    "qwen2_moe": {
        **_EXPERTS, "norm_topk_prob": False, "shared_expert_intermediate_size": 64,
    },
    "qwen3_5_moe_text": {**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 64},
    "qwen3_5_text": _DELTA,
    "qwen3_next": {
        **_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 96, "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
        },
    },
    "qwen3_vl_moe_text": {**_EXPERTS, "rope_parameters": _SECTIONS},
    "qwen3_vl_text": {"rope_parameters": _SECTIONS},
    "smollm3": {"pad_token_id": None, "no_rope_layers": [0, 1]},
    "stablelm": {"hidden_size": 96, "layer_norm_eps": 1e-3},  # heads of 24, 6 of them rotated
    "vaultgemma": {
        "sliding_window": 40, "query_pre_attn_scalar": 48, "layer_types": _MIXED,
        "attn_logit_softcapping": 0.7, "final_logit_softcapping": 0.9,
    },
    "gpt_oss": {
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "sliding_window": 40,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
    },
    "olmoe": {**_EXPERTS, "head_dim": 16},  # its norms are of the hidden size
    "qwen3_moe": _EXPERTS,
}  # fmt: skip

# The most frequent merges in code, written down so that every Python has the same random texts.
_MERGES = """
Ġ+Ġ ĠĠ+ĠĠ ĠĠ+Ġ i+n ĠĠĠĠ+ĠĠĠĠ Ġ+t e+n -+- ĠĠĠĠ+ĠĠĠ r+e Ġ+w t+e Ġ+s Ġ+c Ġ+a Ġ+l a+c Ġt+h in+e
ac+e e+l o+n u+n Ġ+i o+r Ġ+' t+h in+g --+-- p+ace x+t Ġth+e d+e u+r en+t h+i Ġ+in un+k r+a Ġ+=
ĠĠĠĠĠĠĠĠ+ĠĠĠ h+unk Ġl+ine Ġ+# Ġ+b el+f s+e Ġ+f te+s n+d "+" hi+tes hites+pace l+l a+r Ġ+o
hunk+s e+r ra+p e+xt s+t i+d Ġ+( Ġ+p Ġt+o l+e Ġ+re ĠĠĠĠĠĠĠĠ+ĠĠĠĠĠĠĠĠ id+th l+ine Ġs+elf Ġa+nd
Ġ+n Ġ+m or+d Ġc+ur Ġi+s i+t Ġt+ext ----+---- d+ent p+l Ġo+f a+b Ġi+f Ġline+s a+k de+f en+d
Ġw+hitespace w+hitespace Ġ+"" ĠĠĠĠĠĠĠĠ+ĠĠĠĠĠĠĠ re+ak Ġb+e a+n i+ll Ġw+idth te+xt Ġs+t Ġn+o )+:
r+ing Ġc+hunks Ġ""+" c+hunks e+d o+m ab+s (+) a+l ar+g rap+p '+, te+r a+t l+t r+i Ġ+e Ġw+ord
t+ur Ġs+pace tur+n o+p s+elf u+e v+er w+idth on+g Ġre+turn a+te a+nd h+en o+l Ġ+" Ġ+T Ġ+h Ġ+on
in+dent Ġb+reak Ġf+or Ġst+ring c+e
"""


def config_class(model_type: str) -> type[PretrainedConfig]:
    """Returns transformers' class of a config."""
    return CONFIG_MAPPING[model_type]


def make_checkpoint(
    path: Path,
    architecture: str,
    *,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "5GB",
    seed: int = 0,
    tokens: int = 331,
    **overrides: Any,
) -> PreTrainedModel:
    """Save a random two-layer checkpoint; overrides are fields of its config.

    It has a tokenizer of so many tokens, or as many as the model's; 0: none. Weights are drawn so
    that every part matters: logits are of the order of one, norm weights differ from one and biases
    from zero.

    Returns:
        The model in float32 with the values that were saved, so rounded to `dtype`.
    """
    kind = WITH_EXPERTS.get(architecture, architecture)
    special = SPECIAL.get(architecture, {})
    config = config_class(kind)(**{**ODD_SHAPES, **special, **overrides})
    model_class = _MODELS.get(kind) or MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = model_class(config)
    randomize(model, seed)
    model.to(dtype).save_pretrained(path, max_shard_size=max_shard_size)
    # Read back, because casting a model rounds its RoPE frequencies too, which no file holds.
    model = model_class.from_pretrained(path, dtype=torch.float32).eval()
    if tokens:
        write_tokenizer(path, min(tokens, config.vocab_size))
    return model


@torch.no_grad()
def randomize(model: torch.nn.Module, seed: int = 0) -> None:
    """Draw all weights of a model, as `make_checkpoint` does."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            parameter.copy_(noise * parameter[0].numel() ** -0.5)
        else:
            parameter.copy_(noise * 0.2 + ("norm" in name and "bias" not in name))
    for name, buffer in model.named_buffers():
        if name.endswith(("layer_scalar", "std_bias", "std_scale", "_min", "_max")):
            sign = -1 if name.endswith("_min") else 1
            buffer.copy_(sign * (torch.rand(buffer.shape, generator=generator) + 0.6))
        elif name.endswith(("expert_bias", "e_score_correction_bias")):
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)
        elif name.endswith("token_ordering"):
            buffer.copy_(torch.randperm(len(buffer), generator=generator))


@torch.no_grad()
def add_noise(model: torch.nn.Module, amount: float, generator: torch.Generator) -> None:
    """Add to weights what deviates by so much of their own deviation."""
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.add_(noise * parameter.std() * amount)


def write_tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """Write a byte-level BPE tokenizer of exactly that size into a checkpoint's folder.

    `<|endoftext|>` has id 0, then come the bytes and the results of `_MERGES`. Which token ends a
    text is left to the model's config.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    pieces = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [tuple(pair.split("+")) for pair in _MERGES.split()[: vocab_size - len(pieces)]]
    pieces += [left + right for left, right in merges]
    if len(pieces) != vocab_size:
        raise ValueError(f"the merges give {len(pieces)} tokens, not {vocab_size}")
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.add_special_tokens(pieces[:1])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<|endoftext|>",
                "clean_up_tokenization_spaces": False,
            }
        )
    )
    return tokenizer


def edit_json(path: Path, **changes: Any) -> None:
    """Set fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
