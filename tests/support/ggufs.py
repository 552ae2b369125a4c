"""GGUF files of small checkpoints, written by the `gguf` package with its own table of names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from converted import Values, converted
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants
from gguf_numbers import numbers_of

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
