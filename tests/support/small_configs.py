"""The architectures of small checkpoints, and what the config of each has."""

from __future__ import annotations

from typing import Any

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

CHANGING = {"attention_chunk_size": 16, "floor_scale": 8}
"""Of Llama 4: attention that changes within short texts."""

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
