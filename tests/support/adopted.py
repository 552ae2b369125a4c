"""Models that other programs exported as ONNX, and the checkpoints that they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from checkpoints import make_checkpoint, write_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

FOLDER = Path(__file__).parents[1] / "export" / "adopted"
KINDS = ("mistral", "gpt2", "genai")
"""`mistral` has a window of 16 tokens and `gpt2` learned positions; optimum made them. `genai` is a
Qwen2 in 4 bits with ONNX Runtime's own attention, as onnx-community's files have it."""
WINDOW = 16

_VOCABULARY = 331
_SHARPNESS = 12.0  # of logits: random weights give nearly equal ones
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "eos_token_id": None,
}


def make_original(path: Path, kind: str, noise: float = 0.0) -> PreTrainedModel:
    """Save the checkpoint that a model was exported from, with its tokenizer.

    Args:
        path: folder to write.
        kind: one of `KINDS`.
        noise: standard deviation of what is added to weights, relative to their own; with some of
            it the checkpoint is a draft of the model.
    """
    generator = torch.Generator().manual_seed(2)
    if kind == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
        ends = {"bos_token_id": None, "eos_token_id": None}
        untied = {"tie_word_embeddings": False}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=_VOCABULARY, **sizes, **ends, **untied))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                norm = name.endswith("weight") and ".ln_" in name
                values = torch.randn(parameter.shape, generator=generator) * 0.2
                parameter.copy_(values + float(norm))
    else:
        architecture, more = (
            ("mistral", {"sliding_window": WINDOW})
            if kind == "mistral"
            else ("qwen2", {"head_dim": 16})  # the least that ONNX Runtime's attention takes
        )
        model = make_checkpoint(path, architecture, seed=1, **{**_SIZES, **more})
        with torch.no_grad():
            for parameter in model.parameters():
                spread = noise * parameter.std()
                parameter.add_(torch.randn(parameter.shape, generator=generator) * spread)
    with torch.no_grad():
        model.lm_head.weight.mul_(_SHARPNESS)
    model.save_pretrained(path)
    write_tokenizer(path, _VOCABULARY)
    return model.eval()
