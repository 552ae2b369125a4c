"""Checkpoints of embedding models as sentence-transformers saves them, and what it computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkpoints import make_checkpoint, write_tokenizer
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, processors

from edgespec import export
from edgespec.export import ExportOptions
from edgespec.runtime.arrays import Floats

PROMPTS = {"query": "Instruct: find\nQuery:", "document": ""}
END = 0  # what the tokenizer puts behind a text

_MODES = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")


def write_modules(
    folder: Path,
    pooling: str = "lasttoken",
    normalized: bool = True,
    prompts: dict[str, str] | None = None,
    default_prompt: str | None = None,
) -> None:
    """Add the files of sentence-transformers to a checkpoint.

    Args:
        folder: folder of the checkpoint.
        pooling: mode of the pooling, one of `_MODES`.
        normalized: whether a third step normalizes.
        prompts: texts of prompts by name.
        default_prompt: name of the one that is used unasked.
    """
    kinds = ["Transformer", "Pooling", *["Normalize"] * normalized]
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{kind}" if number else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]
    write(folder / "modules.json", modules)
    flags = {f"pooling_mode_{mode}": mode == pooling for mode in _MODES}
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 64, **flags})
    whole = {"prompts": prompts or {}, "default_prompt_name": default_prompt}
    write(folder / "config_sentence_transformers.json", whole)


def add_dense(folder: Path, activation: str = "linear.Identity") -> list[Floats]:
    """Add two dense layers behind the pooling, as EmbeddingGemma has; returns their matrices."""
    steps = json.loads((folder / "modules.json").read_text())
    drawn = np.random.default_rng(0)
    matrices = []
    for number, sizes in ((2, (64, 96)), (3, (96, 64))):
        name = f"{number}_Dense"
        steps.insert(number, {"path": name, "type": "sentence_transformers.models.Dense"})
        config = {
            "in_features": sizes[0],
            "out_features": sizes[1],
            "bias": False,
            "activation_function": f"torch.nn.modules.{activation}",
        }
        write(folder / name / "config.json", config)
        matrices.append(drawn.normal(size=sizes[::-1]).astype(np.float32))
        save_file({"linear.weight": matrices[-1]}, folder / name / "model.safetensors")
    write(folder / "modules.json", steps)
    return matrices


def write(path: Path, content: object) -> None:
    """Write a JSON file."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def make_embedding(folder: Path, architecture: str, bare: bool = False, **options: Any) -> Any:
    """Save a random checkpoint of an embedding model, whose tokenizer ends texts with `END`.

    Args:
        folder: folder of the checkpoint.
        architecture: its architecture.
        bare: whether its weights have the names that transformers gives them without a head.
        options: arguments of `write_modules`, and fields of its config.

    Returns:
        transformers' model.
    """
    own = ("pooling", "normalized", "prompts", "default_prompt")
    steps = {name: options.pop(name) for name in own if name in options}
    model = make_checkpoint(folder, architecture, **options)
    tokenizer = write_tokenizer(folder, 331)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", END)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    write_modules(folder, **steps)
    if bare:
        file = folder / "model.safetensors"
        tensors = {
            name.removeprefix("model."): tensor
            for name, tensor in load_file(file).items()
            if not name.startswith("lm_head.")
        }
        save_file(tensors, file, {"format": "pt"})
    return model


def make_served(folder: Path) -> Path:
    """Make a bundle for servers, of the checkpoint that is beside it; returns its folder."""
    make_embedding(folder / "checkpoint", "qwen3", prompts=PROMPTS)
    (folder / "checkpoint" / "chat_template.jinja").write_text("{{ messages }}")
    export.make(folder / "checkpoint", folder / "bundle", options=ExportOptions("fp32"))
    return folder / "bundle"


def ids_of(folder: Path, text: str) -> list[int]:
    """Returns what the checkpoint's own tokenizer makes of a text."""
    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids


@torch.no_grad()
def embedding_of(model: Any, ids: list[int], pooling: str, normalized: bool = True) -> Floats:
    """Returns the vector of a text, as sentence-transformers' documentation says."""
    rows = model.model(torch.tensor([ids])).last_hidden_state[0]
    vector = rows[-1] if pooling == "lasttoken" else rows.mean(0)
    if normalized:
        vector = torch.nn.functional.normalize(vector, dim=0)
    return np.asarray(vector.numpy(), np.float32)
