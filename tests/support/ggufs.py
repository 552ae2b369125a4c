"""GGUF files of small checkpoints, written by the `gguf` package with its own table of names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

from edgespec.models import SafetensorsFolder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Values = np.ndarray[Any, np.dtype[np.float32]]

KINDS = {
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
}
"""Architectures by their `model_type`."""

_NUMBERS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}


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
    name = gguf.MODEL_ARCH_NAMES[kind]
    writer = GGUFWriter(str(file), name, split_max_tensors=splits)
    for key, value in {**_numbers(name, config), **_vocabulary(folder), **metadata}.items():
        _add(writer, key, value)
    tensors = SafetensorsFolder(folder)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for each in sorted(tensors.names):
        if each == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        place = names.get_name(each, try_suffixes=(".weight", ".bias"))
        values = stored(name, each, tensors.read(each), config)
        used = GGMLQuantizationType[encoding if values.ndim == 2 else "F32"]
        writer.add_tensor(place, _quantized(values, used), raw_dtype=used)
    for each, values in (extra or {}).items():
        writer.add_tensor(each, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def stored(kind: str, name: str, values: Values, config: dict[str, Any]) -> Values:
    """A tensor's values as llama.cpp stores them."""
    if kind in ("granite", "llama", "smollm3") and ("q_proj" in name or "k_proj" in name):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        halves = values.reshape(heads, 2, -1, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)
    return values + 1 if kind.startswith("gemma") and name.endswith("norm.weight") else values


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


def _numbers(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    theta = config.get("rope_theta") or config["rope_parameters"].get("rope_theta")
    if theta is None:
        theta = config["rope_parameters"]["full_attention"]["rope_theta"]
    numbers = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": float(theta),
    }
    if config.get("sliding_window") and kind.startswith("gemma"):
        numbers["attention.sliding_window"] = config["sliding_window"]
    numbers |= {name: float(config[own]) for name, own in _NUMBERS.items() if config.get(own)}
    return {f"{kind}.{name}": value for name, value in numbers.items()}


def _vocabulary(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = sorted(content["model"]["vocab"], key=content["model"]["vocab"].__getitem__)
    added = {token["id"] for token in content["added_tokens"]}
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


def _add(writer: GGUFWriter, name: str, value: Any) -> None:
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
