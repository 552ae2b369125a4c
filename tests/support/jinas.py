"""Random checkpoints stored as Jina's BERT of 2023, and what its definition computes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from embeddings import write, write_modules
from encoders import SIZES, write_wordpiece
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

_HEADS = 6  # no power of two, as in the base models


def make_jina(folder: Path) -> None:
    """Save a checkpoint of jina-embeddings-v2's form, which means all rows."""
    folder.mkdir()
    hidden = SIZES["hidden_size"] + 32
    inner = SIZES["intermediate_size"]
    config = {
        **SIZES,
        "model_type": "bert",
        "architectures": ["JinaBertForMaskedLM"],
        "hidden_size": hidden,
        "num_attention_heads": _HEADS,
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
    }
    write(folder / "config.json", config)
    shapes = {
        "embeddings.word_embeddings.weight": (SIZES["vocab_size"], hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
        **_norm("embeddings.LayerNorm", hidden),
    }
    for index in range(SIZES["num_hidden_layers"]):
        name = f"encoder.layer.{index}"
        for each in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{name}.attention.{each}.weight"] = hidden, hidden
            shapes[f"{name}.attention.{each}.bias"] = (hidden,)
        shapes |= _norm(f"{name}.attention.output.LayerNorm", hidden)
        shapes |= _norm(f"{name}.mlp.layernorm", hidden)
        shapes[f"{name}.mlp.gated_layers.weight"] = 2 * inner, hidden
        shapes[f"{name}.mlp.wo.weight"] = hidden, inner
        shapes[f"{name}.mlp.wo.bias"] = (hidden,)
    drawn = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=drawn) * 0.1 for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    write_wordpiece(folder)
    write_modules(folder, "mean_tokens")


def _norm(name: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def jina_vector(folder: Path, ids: list[int]) -> Any:
    """Returns the normalized vector of a text: the mean of all rows."""
    tensors = load_file(folder / "model.safetensors")

    def linear(x: Tensor, name: str) -> Tensor:
        return functional.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def normal(x: Tensor, name: str) -> Tensor:
        weight = tensors[f"{name}.weight"]
        return functional.layer_norm(x, weight.shape, weight, tensors[f"{name}.bias"], 1e-12)

    x = tensors["embeddings.word_embeddings.weight"][ids]
    x = normal(x + tensors["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    places = torch.arange(len(ids))
    distances = (places[:, None] - places).abs()
    falls = torch.tensor(_slopes(_HEADS))[:, None, None] * distances
    for index in range(SIZES["num_hidden_layers"]):
        name = f"encoder.layer.{index}"
        q, k, v = (
            linear(x, f"{name}.attention.self.{each}").view(len(ids), _HEADS, -1).transpose(0, 1)
            for each in ("query", "key", "value")
        )
        shares = functional.softmax(q @ k.mT / math.sqrt(q.shape[-1]) - falls, -1)
        found = (shares @ v).transpose(0, 1).flatten(1)
        found = linear(found, f"{name}.attention.output.dense")
        x = normal(found + x, f"{name}.attention.output.LayerNorm")
        gate, up = linear(x, f"{name}.mlp.gated_layers").chunk(2, -1)
        found = linear(functional.gelu(gate) * up, f"{name}.mlp.wo")
        x = normal(found + x, f"{name}.mlp.layernorm")
    return functional.normalize(x.mean(0), dim=0).numpy()


def _slopes(heads: int) -> list[float]:
    """Returns the slopes as Jina's code finds them: where heads are no power of two, of others."""
    whole = 2 ** math.floor(math.log2(heads))
    first = 2 ** (-8 / whole)
    found = [first ** (number + 1) for number in range(whole)]
    return found if whole == heads else found + _slopes(2 * whole)[::2][: heads - whole]
