"""Small random checkpoints of every architecture, as transformers saves them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from small_configs import ODD_SHAPES, SPECIAL, WITH_EXPERTS
from text_models import TEXT_MODELS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    PretrainedConfig,
    PreTrainedModel,
)

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


def config_class(model_type: str) -> type[PretrainedConfig]:
    """Returns transformers' class of a config."""
    return CONFIG_MAPPING[model_type]


def make_checkpoint(
    path: Path,
    architecture: str,
    *,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "5GB",
    seed: int = 0,
    tokens: int = 331,
    **overrides: Any,
) -> PreTrainedModel:
    """Save a random two-layer checkpoint; overrides are fields of its config.

    It has a tokenizer of so many tokens, or as many as the model's; 0: none. Weights are drawn so
    that every part matters: logits are of the order of one, norm weights differ from one and biases
    from zero.

    Returns:
        The model in float32 with the values that were saved, so rounded to `dtype`.
    """
    kind = WITH_EXPERTS.get(architecture, architecture)
    special = SPECIAL.get(architecture, {})
    config = config_class(kind)(**{**ODD_SHAPES, **special, **overrides})
    model_class = TEXT_MODELS.get(kind) or MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = model_class(config)
    randomize(model, seed)
    model.to(dtype).save_pretrained(path, max_shard_size=max_shard_size)
    # Read back, because casting a model rounds its RoPE frequencies too, which no file holds.
    model = model_class.from_pretrained(path, dtype=torch.float32).eval()
    if tokens:
        write_tokenizer(path, min(tokens, config.vocab_size))
    return model


@torch.no_grad()
def randomize(model: torch.nn.Module, seed: int = 0) -> None:
    """Draw all weights of a model, as `make_checkpoint` does."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            parameter.copy_(noise * parameter[0].numel() ** -0.5)
        else:
            parameter.copy_(noise * 0.2 + ("norm" in name and "bias" not in name))
    for name, buffer in model.named_buffers():
        if name.endswith(("layer_scalar", "std_bias", "std_scale", "_min", "_max")):
            sign = -1 if name.endswith("_min") else 1
            buffer.copy_(sign * (torch.rand(buffer.shape, generator=generator) + 0.6))
        elif name.endswith(("expert_bias", "e_score_correction_bias")):
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)
        elif name.endswith("token_ordering"):
            buffer.copy_(torch.randperm(len(buffer), generator=generator))


@torch.no_grad()
def add_noise(model: torch.nn.Module, amount: float, generator: torch.Generator) -> None:
    """Add to weights what deviates by so much of their own deviation."""
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.add_(noise * parameter.std() * amount)


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
