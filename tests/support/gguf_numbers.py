"""Numbers of an architecture by their fields in GGUF files, as llama.cpp's converter has them."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

_NUMBERS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "attention.layer_norm_epsilon": "layer_norm_eps",
}
_INTEGERS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "leading_dense_block_count": "num_dense_layers",
    "shortconv.l_cache": "conv_L_cache",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
_YARN = {
    "factor": "factor", "original_context_length": "original_max_position_embeddings",
    "yarn_attn_factor": "attention_factor", "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}  # fmt: skip
# Whose files say that some layers have a window.
_WINDOWED = (
    "cohere2", "exaone4", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text",
    "gemma4_unified_text", "gpt_oss", "olmo3", "phi3",
)  # fmt: skip


def numbers_of(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    """Fields of an architecture by their names in GGUF, of a config in transformers."""
    ropes = config.get("rope_parameters") or {}
    rope = ropes.get("full_attention", ropes)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    config = {**config, "head_dim": head_dim}
    if "num_local_experts" in config:
        config["num_experts"] = config["num_local_experts"]
        config["num_experts_per_tok"] *= bool(config["num_experts"])
    numbers = {
        "attention.layer_norm_rms_epsilon": config.get("norm_eps") or config.get("rms_norm_eps"),
        "rope.freq_base": float(config.get("rope_theta") or rope.get("rope_theta", 1e4)),
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
        **{name: config.get(own) for name, own in _INTEGERS.items()},
        **{name: float(config[own]) for name, own in _NUMBERS.items() if config.get(own)},
        **_scaling(rope, config),
        "rope.dimension_sections": rope.get("mrope_section") and [*rope["mrope_section"], 0],
    }
    if config["model_type"] in _WINDOWED and config.get("sliding_window"):
        numbers["attention.sliding_window"] = config["sliding_window"]
        if config["model_type"] in ("exaone4", "olmo3"):
            pattern = [each == "sliding_attention" for each in config["layer_types"]]
            numbers["attention.sliding_window_pattern"] = pattern
    if config["model_type"] in ("lfm2", "lfm2_moe"):
        heads = config["num_key_value_heads"]
        kinds = config["layer_types"]
        numbers["attention.head_count_kv"] = [heads * (each != "conv") for each in kinds]
    if config["model_type"] == "lfm2":
        width = 2 * config["intermediate_size"] // 3
        multiple = config["block_multiple_of"]
        numbers["feed_forward_length"] = multiple * -(-width // multiple)
    if config["model_type"] == "lfm2_moe":
        numbers["expert_gating_func"] = 2
    if config["model_type"] in ("deepseek_v2", "glm4_moe", "glm4_moe_lite", "mistral4"):
        numbers |= _routed(config)
    if config.get("kv_lora_rank"):
        numbers |= _latent(config)
    if config["model_type"] in _MORE:
        numbers |= _MORE[config["model_type"]](config)
    if config["model_type"] in ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"):
        value_size = config["linear_value_head_dim"]
        numbers["ssm.inner_size"] = value_size * config["linear_num_value_heads"]
        recurrent = [each == "linear_attention" for each in config["layer_types"]]
        numbers["attention.recurrent_layers"] = recurrent
    if kind == "gemma4":
        numbers |= _gemma4(config, ropes)
    return {f"{kind}.{name}": value for name, value in numbers.items() if value is not None}


def _granite(config: dict[str, Any]) -> dict[str, Any]:
    recurrent = [each == "linear_attention" for each in config["layer_types"]]
    numbers: dict[str, Any] = {
        "attention.head_count_kv": [
            config["num_key_value_heads"] * (not each) for each in recurrent
        ],
        "expert_shared_feed_forward_length": config["shared_intermediate_size"],
        "rope.scaling.finetuned": not any(recurrent),
    }
    if any(recurrent):
        numbers |= {
            "ssm.conv_kernel": config["mamba_d_conv"],
            "ssm.state_size": config["mamba_d_state"],
            "ssm.group_count": config["mamba_n_groups"],
            "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
            "ssm.time_step_rank": config["mamba_n_heads"],
        }
    return numbers


def _falcon(config: dict[str, Any]) -> dict[str, Any]:
    """Sizes of state spaces; factors are in the weights."""
    return {
        "embedding_scale": None,
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"],
        "ssm.inner_size": config["mamba_d_ssm"],
        "ssm.time_step_rank": config["mamba_n_heads"],
    }


def _kimi(config: dict[str, Any]) -> dict[str, Any]:
    """Kinds of layers, and experts by Kimi's names."""
    return {
        "context_length": config["model_max_length"],
        "attention.head_count_kv": [
            int(each == "full_attention") for each in config["layer_types"]
        ],
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_token"],
        "expert_shared_count": config["num_shared_experts"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_gating_func": 2,
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        "kda.head_dim": config["linear_head_dim"],
    }


def _llama4(config: dict[str, Any]) -> dict[str, Any]:
    """Widths of MLPs and experts."""
    return {
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_feed_forward_length": config["intermediate_size"],
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
    }


def _nemotron(config: dict[str, Any]) -> dict[str, Any]:
    kinds = config["layers_block_type"]
    return {
        "block_count": len(kinds),
        "attention.head_count_kv": [
            config["num_key_value_heads"] * (each == "full_attention") for each in kinds
        ],
        "feed_forward_length": [config["intermediate_size"] * (each == "mlp") for each in kinds],
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "attention.layer_norm_epsilon": float(config["layer_norm_epsilon"]),
        "expert_count": None,
        "expert_used_count": None,
        "expert_feed_forward_length": None,
        **(_nemotron_experts(config) if "moe" in kinds else {}),
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.state_size": config["ssm_state_size"],
        "ssm.group_count": config["n_groups"],
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
        "ssm.time_step_rank": config["mamba_num_heads"],
    }


def _nemotron_experts(config: dict[str, Any]) -> dict[str, Any]:
    width = config["moe_intermediate_size"]
    kinds = config["layers_block_type"]
    return {
        "feed_forward_length": [width * (each == "moe") for each in kinds],
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": width,
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_group_count": config["n_group"],
        "moe_latent_size": config["moe_latent_size"],
    }


def _ernie(config: dict[str, Any]) -> dict[str, Any]:
    """Experts by ERNIE's names."""
    return {
        "expert_count": config["moe_num_experts"],
        "expert_used_count": config["moe_k"],
        "expert_shared_count": config["moe_num_shared_experts"],
        "leading_dense_block_count": config["moe_layer_start_index"],
        "interleave_moe_layer_step": config["moe_layer_interval"],
    }


def _cohere(config: dict[str, Any]) -> dict[str, Any]:
    """The factor of logits, under Cohere's name."""
    return {"logit_scale": config["logit_scale"]}


def _latent(config: dict[str, Any]) -> dict[str, Any]:
    """Sizes of attention to latents."""
    latent = config["kv_lora_rank"]
    turned = config["qk_rope_head_dim"]
    return {
        "rope.dimension_count": turned,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": latent,
        "attention.key_length": latent + turned,
        "attention.value_length": latent,
        "attention.key_length_mla": config["qk_nope_head_dim"] + turned,
        "attention.value_length_mla": config["v_head_dim"],
    }


def _minicpm(config: dict[str, Any]) -> dict[str, Any]:
    """Sizes as in files without matrices of each head."""
    return {
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length": None,
        "attention.key_length_mla": None,
        "attention.value_length_mla": None,
    }


def _routed(config: dict[str, Any]) -> dict[str, Any]:
    """Experts by DeepSeek's names."""
    kinds = config.get("mlp_layer_types", [])
    softmax = config["model_type"] in ("deepseek_v2", "mistral4")
    return {
        "expert_count": config["n_routed_experts"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_gating_func": 1 if softmax else 2,
        "leading_dense_block_count": kinds.count("dense") or config.get("first_k_dense_replace"),
    }


def _gemma3n(config: dict[str, Any]) -> dict[str, Any]:
    shares = config["activation_sparsity_pattern"]
    return {
        "altup.active_idx": config["altup_active_idx"],
        "altup.num_inputs": config["altup_num_inputs"],
        "activation_sparsity_scale": [
            NormalDist().inv_cdf(each) if each else -math.inf for each in shares
        ],
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "attention.sliding_window_pattern": [
            each == "sliding_attention" for each in config["layer_types"]
        ],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
    }


_MORE = {
    "cohere2": _cohere,
    "ernie4_5_moe": _ernie,
    "falcon_h1": _falcon,
    "gemma3n_text": _gemma3n,
    "llama4_text": _llama4,
    "granitemoehybrid": _granite,
    "kimi_linear": _kimi,
    "minicpm3": _minicpm,
    "nemotron_h": _nemotron,
}


def _gemma4(config: dict[str, Any], ropes: dict[str, Any]) -> dict[str, Any]:
    """What differs between layers with a window and others; without one, its own fields."""
    windowed = [each == "sliding_attention" for each in config["layer_types"]]
    full = config["per_layer_config"][str(windowed.index(False))]
    heads = config["num_key_value_heads"], full.get("num_key_value_heads")
    shared = config["num_kv_shared_layers"]
    width = config["intermediate_size"]
    numbers = {
        "attention.key_length": full["head_dim"],
        "attention.value_length": full["head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.shared_kv_layers": shared,
        "attention.sliding_window_pattern": windowed,
        "embedding_length_per_layer_input": config.get("hidden_size_per_layer_input") or 0,
        "rope.dimension_count": full["head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
        "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"],
        "expert_used_count": config.get("top_k_experts"),
    }
    if config["use_double_wide_mlp"]:
        first = len(windowed) - shared
        numbers["feed_forward_length"] = [width] * first + [2 * width] * shared
    if heads[1]:
        numbers["attention.head_count_kv"] = [heads[not each] for each in windowed]
    return numbers


def _scaling(rope: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """How angles are scaled, if they are."""
    kind = rope.get("rope_type") if config["model_type"] != "minicpm3" else None
    scaling = dict[str, Any]()
    if kind in ("yarn", "longrope"):
        scaling = {"type": kind, **{name: rope.get(own) for name, own in _YARN.items()}}
    if kind == "longrope":
        original = config["original_max_position_embeddings"]
        stretch = config["max_position_embeddings"] / original
        scaling["attn_factor"] = math.sqrt(1 + math.log(stretch) / math.log(original))
        scaling["original_context_length"] = original
    found = {f"rope.scaling.{name}": value for name, value in scaling.items()}
    if config["model_type"] in ("deepseek_v2", "ministral3", "mistral4"):
        scale = rope["mscale_all_dim"]
        told = "rope.scaling.yarn_log_multiplier"
        found[told] = scale / 10 if scale and config["model_type"] != "ministral3" else scale
        found["attention.temperature_scale"] = rope.get("llama_4_scaling_beta")
    return found
