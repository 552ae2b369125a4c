"""GGUF files of small checkpoints, written by the `gguf` package with its own table of names."""

from __future__ import annotations

import json
import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from converted import Values, converted
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

from edgespec.models import SafetensorsFolder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KINDS = {
    "arcee": gguf.MODEL_ARCH.ARCEE,
    "bitnet": gguf.MODEL_ARCH.BITNET,
    "cohere2": gguf.MODEL_ARCH.COHERE2,
    "deepseek_v2": gguf.MODEL_ARCH.DEEPSEEK2,
    "ernie4_5": gguf.MODEL_ARCH.ERNIE4_5,
    "ernie4_5_moe": gguf.MODEL_ARCH.ERNIE4_5_MOE,
    "exaone4": gguf.MODEL_ARCH.EXAONE4,
    "falcon_h1": gguf.MODEL_ARCH.FALCON_H1,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "gemma3n_text": gguf.MODEL_ARCH.GEMMA3N,
    "gemma4_text": gguf.MODEL_ARCH.GEMMA4,
    "gemma4_unified_text": gguf.MODEL_ARCH.GEMMA4,
    "glm4": gguf.MODEL_ARCH.GLM4,
    "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE,
    "glm4_moe_lite": gguf.MODEL_ARCH.DEEPSEEK2,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "granitemoe": gguf.MODEL_ARCH.GRANITE_MOE,
    "granitemoehybrid": gguf.MODEL_ARCH.GRANITE_HYBRID,
    "hunyuan_v1_dense": gguf.MODEL_ARCH.HUNYUAN_DENSE,
    "kimi_linear": gguf.MODEL_ARCH.KIMI_LINEAR,
    "lfm2": gguf.MODEL_ARCH.LFM2,
    "lfm2_moe": gguf.MODEL_ARCH.LFM2MOE,
    "llama4_text": gguf.MODEL_ARCH.LLAMA4,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "minicpm": gguf.MODEL_ARCH.MINICPM,
    "minicpm3": gguf.MODEL_ARCH.MINICPM3,
    "ministral3": gguf.MODEL_ARCH.MISTRAL3,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mistral4": gguf.MODEL_ARCH.MISTRAL4,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "nemotron_h": gguf.MODEL_ARCH.NEMOTRON_H,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "olmo3": gguf.MODEL_ARCH.OLMO2,
    "olmoe": gguf.MODEL_ARCH.OLMOE,
    "phimoe": gguf.MODEL_ARCH.PHIMOE,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen2_5_vl_text": gguf.MODEL_ARCH.QWEN2VL,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_5_moe_text": gguf.MODEL_ARCH.QWEN35MOE,
    "qwen3_5_text": gguf.MODEL_ARCH.QWEN35,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "qwen3_next": gguf.MODEL_ARCH.QWEN3NEXT,
    "qwen3_vl_moe_text": gguf.MODEL_ARCH.QWEN3VLMOE,
    "qwen3_vl_text": gguf.MODEL_ARCH.QWEN3VL,
    "seed_oss": gguf.MODEL_ARCH.SEED_OSS,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "stablelm": gguf.MODEL_ARCH.STABLELM,
}
"""Architectures by their `model_type`."""

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


def write_gguf(
    folder: Path,
    file: Path,
    encoding: str = "F32",
    *,
    splits: int = 0,
    extra: Mapping[str, Values] | None = None,
    **metadata: Any,
) -> None:
    """Write a checkpoint as llama.cpp's converter would.

    Args:
        folder: The checkpoint, with a byte-level tokenizer.
        file: The file.
        encoding: That of its matrices.
        splits: Number of tensors in a file, if it is split.
        extra: More tensors.
        metadata: More fields, or None for a field to be left out.
    """
    config = json.loads((folder / "config.json").read_text())
    kind = KINDS[config["model_type"]]
    if kind == gguf.MODEL_ARCH.GRANITE_HYBRID and "linear_attention" not in config["layer_types"]:
        kind = gguf.MODEL_ARCH.GRANITE
    if kind == gguf.MODEL_ARCH.NEMOTRON_H and "moe" in config["layers_block_type"]:
        kind = gguf.MODEL_ARCH.NEMOTRON_H_MOE
    if config.get("use_bidirectional_attention") is True:  # "vision": rows of pictures alone
        kind = gguf.MODEL_ARCH.GEMMA_EMBEDDING
    name = gguf.MODEL_ARCH_NAMES[kind]
    writer = GGUFWriter(str(file), name, split_max_tensors=splits)
    for key, value in {**numbers_of(name, config), **_vocabulary(folder), **metadata}.items():
        add_field(writer, key, value)
    tensors = SafetensorsFolder(folder)
    layers = numbers_of(name, config)[f"{name}.block_count"]
    names = gguf.get_tensor_name_map(kind, layers + 1)  # and a draft head
    read = {
        each: tensors.read(each)
        for each in sorted(tensors.names)
        if each != "lm_head.weight" or not config["tie_word_embeddings"]
    }
    for each, values in converted(name, read, config):
        place = names.get_name(each, try_suffixes=(".weight", ".bias")) or each
        quantized = (values.ndim > 1 and each.endswith("_proj.weight")) or values.ndim == 2
        short = "conv" in each or ".bias" in each
        short |= each.endswith(("_bias", ".A_log", ".D", "norm.weight"))
        used = GGMLQuantizationType[encoding if quantized and not short else "F32"]
        writer.add_tensor(place, _quantized(values, used), raw_dtype=used)
    for each, values in {**frequencies_of(config), **(extra or {})}.items():
        writer.add_tensor(each, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def frequencies_of(config: dict[str, Any]) -> dict[str, Values]:
    """Divisors of angles; of Gemma 4's layers without a window large where nothing turns."""
    if config["model_type"] == "minicpm3":
        ropes = config["rope_parameters"]
        kinds = [kind for kind in ("short", "long") if f"{kind}_factor" in ropes]
        factors = {kind: ropes[f"{kind}_factor"] for kind in kinds}
        return {f"rope_factors_{k}.weight": np.array(v, np.float32) for k, v in factors.items()}
    if not config["model_type"].startswith("gemma4"):
        return {}
    windowed = config["layer_types"].index("full_attention")
    half = config["per_layer_config"][str(windowed)]["head_dim"] // 2
    rotated = int(half * config["rope_parameters"]["full_attention"]["partial_rotary_factor"])
    return {"rope_freqs.weight": np.array([1] * rotated + [1e30] * (half - rotated), np.float32)}


def _quantized(values: Values, kind: GGMLQuantizationType) -> np.ndarray[Any, Any]:
    """Values in blocks; random blocks where the package can only read the kind."""
    try:
        return quants.quantize(values, kind)
    except NotImplementedError:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        shape = (*values.shape[:-1], values.shape[-1] // block, size)
        # Small bytes: wherever a scale in half precision lies, it is small and finite.
        blocks = np.random.default_rng(0).integers(0, 60, shape, np.uint8)
        return blocks.reshape(*values.shape[:-1], -1)


def dequantized(stored: np.ndarray[Any, Any], kind: GGMLQuantizationType) -> Values:
    """Returns the weights of a file's rows, by the `gguf` package, of Q1_0 by its definition."""
    if kind != GGMLQuantizationType.Q1_0:
        return quants.dequantize(stored, kind)
    found = [
        (1 if block[2 + k // 8] >> k % 8 & 1 else -1) * np.float32(block[:2].view("<f2")[0])
        for block in stored.reshape(-1, 18)
        for k in range(128)
    ]
    return np.float32(found).reshape(len(stored), -1)


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


def _vocabulary(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    added = {token["id"]: token["content"] for token in content["added_tokens"]}
    ids = {**content["model"]["vocab"], **{token: id_ for id_, token in added.items()}}
    tokens = sorted(ids, key=ids.__getitem__)
    uses = [TokenType.CONTROL if n in added else TokenType.NORMAL for n in range(len(tokens))]
    place = "tokenizer.ggml"
    return {
        f"{place}.model": "gpt2",
        f"{place}.pre": "gpt-2",
        f"{place}.tokens": tokens,
        f"{place}.token_type": [int(use) for use in uses],
        f"{place}.merges": [
            each if isinstance(each, str) else " ".join(each) for each in content["model"]["merges"]
        ],
        f"{place}.bos_token_id": 0,
        f"{place}.eos_token_id": 0,
    }


def add_field(writer: GGUFWriter, name: str, value: Any) -> None:
    """Adds a field of the kind that its value tells; none where it is None."""
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    elif value is not None:
        writer.add_array(name, value)
