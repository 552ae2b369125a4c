"""Random checkpoints stored as Jina's BERT of 2023, and what its definition computes.

The model for code is `jinaai/jina-bert-v2-qk-post-norm`, others `jinaai/jina-bert-implementation`.
"""

from __future__ import annotations

import json
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
_HIDDEN = SIZES["hidden_size"] + 32


def make_jina(folder: Path, code: bool = False) -> None:
    """Save a checkpoint of jina-embeddings-v2's form, which means all rows.

    Args:
        folder: folder of the checkpoint.
        code: whether it is as the model for code.
    """
    _save(folder, "JinaBertForMaskedLM", _shapes(code))
    write_modules(folder, "mean_tokens")


def make_jina_ranker(folder: Path) -> None:
    """Save a checkpoint of jina-reranker-v1's form, whose config tells nothing of scores."""
    shapes = {f"bert.{name}": shape for name, shape in _shapes(False).items()}
    shapes |= _linear("bert.pooler.dense", _HIDDEN, _HIDDEN)
    shapes |= _linear("classifier", 1, _HIDDEN)
    _save(folder, "JinaBertModel", shapes)


def _save(folder: Path, architecture: str, shapes: dict[str, tuple[int, ...]]) -> None:
    folder.mkdir()
    config = {
        **SIZES,
        "model_type": "bert",
        "architectures": [architecture],
        "hidden_size": _HIDDEN,
        "num_attention_heads": _HEADS,
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
        "emb_pooler": "mean",
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
    }
    write(folder / "config.json", config)
    drawn = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=drawn) * 0.1 for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    write_wordpiece(folder)


def _shapes(code: bool) -> dict[str, tuple[int, ...]]:
    inner = SIZES["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (SIZES["vocab_size"], _HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, _HIDDEN),
        **_norm("embeddings.LayerNorm"),
    }
    gated, down = ("up_gated_layer", "down_layer") if code else ("gated_layers", "wo")
    norms = ["mlp.layernorm"]
    if code:
        attention = "attention.self.layer_norm"
        norms = ["layer_norm_1", "layer_norm_2", f"{attention}_q", f"{attention}_k"]
    for index in range(SIZES["num_hidden_layers"]):
        name = f"encoder.layer.{index}"
        for each in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= _linear(f"{name}.attention.{each}", _HIDDEN, _HIDDEN)
        for each in ("attention.output.LayerNorm", *norms):
            shapes |= _norm(f"{name}.{each}")
        shapes[f"{name}.mlp.{gated}.weight"] = 2 * inner, _HIDDEN
        shapes |= _linear(f"{name}.mlp.{down}", _HIDDEN, inner)
    return shapes


def _linear(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (_HIDDEN,), f"{name}.bias": (_HIDDEN,)}


def jina_vector(folder: Path, ids: list[int]) -> Any:
    """Returns the normalized vector of a text: the mean of all rows."""
    rows = _Reference(folder).rows(ids, [0] * len(ids))
    return functional.normalize(rows.mean(0), dim=0).numpy()


def jina_score(folder: Path, ids: list[int], parts: list[int]) -> float:
    """Returns the score of a pair of texts."""
    reference = _Reference(folder)
    row = reference.rows(ids, parts)[0]
    row = torch.tanh(reference.linear(row, "pooler.dense"))
    return float(torch.sigmoid(reference.linear(row, "classifier")))


class _Reference:
    """The definition of both models, for one text."""

    def __init__(self, folder: Path) -> None:
        stored = load_file(folder / "model.safetensors")
        self._tensors = {name.removeprefix("bert."): tensor for name, tensor in stored.items()}
        self._layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
        self._code = "encoder.layer.0.layer_norm_1.weight" in self._tensors

    def linear(self, x: Tensor, name: str) -> Tensor:
        """Returns a product with a matrix and its bias, if it has one."""
        bias = self._tensors.get(f"{name}.bias")
        return functional.linear(x, self._tensors[f"{name}.weight"], bias)

    def rows(self, ids: list[int], parts: list[int]) -> Tensor:
        """Returns the last layer's rows."""
        x = self._tensors["embeddings.word_embeddings.weight"][ids]
        x = x + self._tensors["embeddings.token_type_embeddings.weight"][parts]
        x = self._norm(x, "embeddings.LayerNorm")
        for index in range(self._layers):
            name = f"encoder.layer.{index}"
            found = self._attention(x, name)
            if self._code:
                found = self._norm(x + found, f"{name}.layer_norm_1")
            x = self._mlp(found, name)
        return x

    def _attention(self, x: Tensor, name: str) -> Tensor:
        q, k, v = (self.linear(x, f"{name}.attention.self.{o}") for o in ("query", "key", "value"))
        if self._code:
            q = self._norm(q, f"{name}.attention.self.layer_norm_q")
            k = self._norm(k, f"{name}.attention.self.layer_norm_k")
        q, k, v = (each.view(len(x), _HEADS, -1).transpose(0, 1) for each in (q, k, v))
        places = torch.arange(len(x))
        falls = torch.tensor(_slopes(_HEADS))[:, None, None] * (places[:, None] - places).abs()
        shares = functional.softmax(q @ k.mT / math.sqrt(q.shape[-1]) - falls, -1)
        found = (shares @ v).transpose(0, 1).flatten(1)
        found = self.linear(found, f"{name}.attention.output.dense")
        return self._norm(found + x, f"{name}.attention.output.LayerNorm")

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        if self._code:
            up, gate = self.linear(x, f"{name}.mlp.up_gated_layer").chunk(2, -1)
            found = self.linear(up * functional.gelu(gate), f"{name}.mlp.down_layer")
            return self._norm(x + found, f"{name}.layer_norm_2")
        gate, up = self.linear(x, f"{name}.mlp.gated_layers").chunk(2, -1)
        found = self.linear(functional.gelu(gate) * up, f"{name}.mlp.wo")
        return self._norm(found + x, f"{name}.mlp.layernorm")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self._tensors[f"{name}.weight"]
        return functional.layer_norm(x, weight.shape, weight, self._tensors[f"{name}.bias"], 1e-12)


def _slopes(heads: int) -> list[float]:
    """Returns the slopes as Jina's code finds them: where heads are no power of two, of others."""
    whole = 2 ** math.floor(math.log2(heads))
    first = 2 ** (-8 / whole)
    found = [first ** (number + 1) for number in range(whole)]
    return found if whole == heads else found + _slopes(2 * whole)[::2][: heads - whole]
