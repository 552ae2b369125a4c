"""Small random checkpoints of every architecture, in awkward shapes, as transformers saves them."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

ARCHITECTURES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}

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


def make_checkpoint(
    path: Path,
    architecture: str,
    *,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "5GB",
    seed: int = 0,
    **overrides: Any,
) -> PreTrainedModel:
    """Save a random two-layer checkpoint; overrides are fields of its config.

    Weights are drawn so that every part matters: logits are of the order of one, norm weights
    differ from one and biases from zero.

    Returns:
        The model in float32 with the values that were saved, so rounded to `dtype`.
    """
    config_class, model_class = ARCHITECTURES[architecture]
    windowless = {"sliding_window": None} if architecture == "mistral" else {}
    model = model_class(config_class(**{**ODD_SHAPES, **windowless, **overrides}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 2:
                parameter.copy_(noise * parameter.shape[1] ** -0.5)
            else:
                parameter.copy_(noise * 0.2 + (1.0 if "norm" in name else 0.0))
    model.to(dtype).save_pretrained(path, max_shard_size=max_shard_size)
    # Read back, because casting a model rounds its RoPE frequencies too, which no file holds.
    return model_class.from_pretrained(path, dtype=torch.float32).eval()


def write_tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """Put a byte-level BPE tokenizer of exactly that size into a checkpoint's folder.

    `<|endoftext|>` has id 0, the bytes follow, merges come from a module of the standard library.
    It is left to the model's config what ends a text.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    lines = Path(textwrap.__file__).read_text(encoding="utf-8").splitlines(keepends=True)
    tokenizer.train_from_iterator(lines, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"the corpus gives {tokenizer.get_vocab_size()} tokens, not {vocab_size}")
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<|endoftext|>",
                "clean_up_tokenization_spaces": False,
            }
        )
    )
    return tokenizer


def edit_json(path: Path, **changes: Any) -> None:
    """Set fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
