"""Small random checkpoints of every architecture, as transformers saves them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

ARCHITECTURES = {
    "gemma3_text": (Gemma3TextConfig, Gemma3ForCausalLM),
    "gpt_oss": (GptOssConfig, GptOssForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "olmo2": (Olmo2Config, Olmo2ForCausalLM),
    "olmoe": (OlmoeConfig, OlmoeForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
}

MIXTURES = ("gpt_oss", "olmoe", "qwen3_moe")
"""The architectures whose layers are mixtures of experts."""

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

# Some experts are chosen by no row of a short text.
_EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}

_OWN: dict[str, dict[str, Any]] = {
    "gpt_oss": {
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "sliding_window": 40,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral": {"sliding_window": None},
    "olmoe": {**_EXPERTS, "head_dim": 16},  # its norms are of the hidden size
    "qwen3_moe": _EXPERTS,
}

# The most frequent merges in code, written down so that every Python has the same random texts.
_MERGES = """
Ġ+Ġ ĠĠ+ĠĠ ĠĠ+Ġ i+n ĠĠĠĠ+ĠĠĠĠ Ġ+t e+n -+- ĠĠĠĠ+ĠĠĠ r+e Ġ+w t+e Ġ+s Ġ+c Ġ+a Ġ+l a+c Ġt+h in+e
ac+e e+l o+n u+n Ġ+i o+r Ġ+' t+h in+g --+-- p+ace x+t Ġth+e d+e u+r en+t h+i Ġ+in un+k r+a Ġ+=
ĠĠĠĠĠĠĠĠ+ĠĠĠ h+unk Ġl+ine Ġ+# Ġ+b el+f s+e Ġ+f te+s n+d "+" hi+tes hites+pace l+l a+r Ġ+o
hunk+s e+r ra+p e+xt s+t i+d Ġ+( Ġ+p Ġt+o l+e Ġ+re ĠĠĠĠĠĠĠĠ+ĠĠĠĠĠĠĠĠ id+th l+ine Ġs+elf Ġa+nd
Ġ+n Ġ+m or+d Ġc+ur Ġi+s i+t Ġt+ext ----+---- d+ent p+l Ġo+f a+b Ġi+f Ġline+s a+k de+f en+d
Ġw+hitespace w+hitespace Ġ+"" ĠĠĠĠĠĠĠĠ+ĠĠĠĠĠĠĠ re+ak Ġb+e a+n i+ll Ġw+idth te+xt Ġs+t Ġn+o )+:
r+ing Ġc+hunks Ġ""+" c+hunks e+d o+m ab+s (+) a+l ar+g rap+p '+, te+r a+t l+t r+i Ġ+e Ġw+ord
t+ur Ġs+pace tur+n o+p s+elf u+e v+er w+idth on+g Ġre+turn a+te a+nd h+en o+l Ġ+" Ġ+T Ġ+h Ġ+on
in+dent Ġb+reak Ġf+or Ġst+ring c+e
"""


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
    own = _OWN.get(architecture, {})
    model = model_class(config_class(**{**ODD_SHAPES, **own, **overrides}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            else:
                parameter.copy_(noise * 0.2 + (1.0 if "norm" in name else 0.0))
    model.to(dtype).save_pretrained(path, max_shard_size=max_shard_size)
    # Read back, because casting a model rounds its RoPE frequencies too, which no file holds.
    return model_class.from_pretrained(path, dtype=torch.float32).eval()


def write_tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """Write a byte-level BPE tokenizer of exactly that size into a checkpoint's folder.

    `<|endoftext|>` has id 0, then come the bytes and the results of `_MERGES`. Which token ends a
    text is left to the model's config.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    pieces = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [tuple(pair.split("+")) for pair in _MERGES.split()[: vocab_size - len(pieces)]]
    pieces += [left + right for left, right in merges]
    if len(pieces) != vocab_size:
        raise ValueError(f"the merges give {len(pieces)} tokens, not {vocab_size}")
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.add_special_tokens(pieces[:1])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
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
