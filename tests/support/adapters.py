"""Adapters of small checkpoints, in files of PEFT and of llama.cpp, and models with them merged."""

from __future__ import annotations

import copy
import json
import math
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

ALL = (
    "q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "gate_proj", "up_proj", "down_proj",
    "gate_up_proj", "lm_head",
)  # fmt: skip
"""Modules of most models that adapters add to."""

_GGUF = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
    "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip


def drawn(
    model: torch.nn.Module, modules: Sequence[str], rank: int, seed: int
) -> Iterator[tuple[str, torch.nn.Linear, np.ndarray, np.ndarray]]:
    """Yields the name, the layer and random matrices of each module with one of these names."""
    rng = np.random.default_rng(seed)
    for name, layer in model.named_modules():
        if name.rpartition(".")[2] in modules and isinstance(layer, torch.nn.Linear):
            a = rng.standard_normal((rank, layer.in_features), "f4")
            b = rng.standard_normal((layer.out_features, rank), "f4")
            yield name, layer, a / math.sqrt(layer.in_features), b / math.sqrt(4 * rank)


def write_peft(
    folder: Path,
    model: torch.nn.Module,
    modules: Sequence[str] = ALL,
    rank: int = 4,
    seed: int = 0,
    scale: float = 1.0,
    **config: Any,
) -> torch.nn.Module:
    """Writes an adapter as PEFT does; returns the model with it merged, times a scale."""
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, **config}
    root = math.sqrt(rank) if fields.get("use_rslora") else rank
    merged = copy.deepcopy(model)
    tensors = {}
    for name, layer, a, b in drawn(merged, modules, rank, seed):
        tensors[f"base_model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.{name}.lora_B.weight"] = b
        patterns = fields.get("alpha_pattern", {}).items()
        own = (alpha for end, alpha in patterns if name.endswith(f".{end}"))
        alpha = next(own, fields["lora_alpha"])
        merge(layer, b @ a, scale * alpha / root)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    return merged


def write_gguf(
    file: Path, model: torch.nn.Module, rank: int = 4, seed: int = 0, alpha: float = 8.0
) -> torch.nn.Module:
    """Writes an adapter as llama.cpp's converter does; returns the model with it merged."""
    merged = copy.deepcopy(model)
    config = merged.config
    writer = gguf.GGUFWriter(file, config.model_type)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, layer, a, b in drawn(merged, tuple(_GGUF), rank, seed):
        merge(layer, b @ a, alpha / rank if alpha else 1.0)
        number, own = name.split(".")[2], name.rpartition(".")[2]
        stored = f"blk.{number}.{_GGUF[own]}.weight"
        if config.model_type == "llama" and own in ("q_proj", "k_proj"):  # neighbours turn together
            halves = b.reshape(-1, 2, config.head_dim // 2, rank)
            b = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(b.shape)  # noqa: PLW2901
        writer.add_tensor(f"{stored}.lora_a", a)
        writer.add_tensor(f"{stored}.lora_b", b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return merged


def merge(layer: torch.nn.Linear, product: np.ndarray, scale: float) -> None:
    """Adds a product of matrices to a layer's weights."""
    weight = layer.weight.detach() + scale * torch.from_numpy(product)
    layer.weight = torch.nn.Parameter(weight)  # a head of its own, if it was the embedding
