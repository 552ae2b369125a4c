"""The networks of the pair, Llamas of ``transformers`` with float32 weights, and their text."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from data import END
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_HALF = bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def _config(layers: int, hidden: int, head_dim: int, inter: int, context: int) -> LlamaConfig:
    """The sizes of a model; of a draft, the context is what it was trained on."""
    return LlamaConfig(
        vocab_size=4096,
        hidden_size=hidden,
        intermediate_size=inter,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )


TARGET = _config(layers=8, hidden=256, head_dim=64, inter=768, context=2048)
DRAFT = _config(layers=2, hidden=128, head_dim=32, inter=384, context=512)


def arithmetic() -> torch.autocast:
    """Products in bfloat16 where the processor has instructions for them, else in float32."""
    return torch.autocast("cpu", torch.bfloat16, enabled=_HALF)


def new(config: LlamaConfig) -> LlamaForCausalLM:
    """Return a model with random weights."""
    model = LlamaForCausalLM(config)
    nn.init.normal_(model.model.embed_tokens.weight, std=0.02)
    for name, weight in model.model.layers.named_parameters():
        if weight.ndim == 2:
            std = 0.5 / math.sqrt(weight.shape[1])
            output = name.endswith(("o_proj.weight", "down_proj.weight"))
            depth = math.sqrt(2 * config.num_hidden_layers) if output else 1.0
            nn.init.normal_(weight, std=std / depth)
    return model


def read_folder(folder: Path) -> LlamaForCausalLM:
    """Load a checkpoint folder."""
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def write_folder(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a model in bfloat16, with its tokenizer."""
    half = LlamaForCausalLM(model.config).to(torch.bfloat16)
    half.load_state_dict(model.state_dict())
    half.save_pretrained(folder)
    context = model.config.max_position_embeddings
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


def hidden_of(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Return the normalised hidden states (batch, length, hidden)."""
    hidden: Tensor = model.model(input_ids=ids, use_cache=False).last_hidden_state
    return hidden


def logits_of(model: LlamaForCausalLM, ids: Tensor, start: int = 0) -> Tensor:
    """Return float32 logits (batch, length - start, vocab) of all positions but the first ones."""
    # bfloat16 logits would tie: at 16 their spacing is an eighth.
    with torch.autocast("cpu", enabled=False):
        hidden = hidden_of(model, ids)[:, start:].float()
        logits: Tensor = hidden @ model.lm_head.weight.float().t()
    return logits


@torch.no_grad()
def generate(
    model: LlamaForCausalLM, prompts: Tensor, tokens: int, heat: float, seed: int
) -> Tensor:
    """Continue each prompt by exactly ``tokens`` tokens; a file's end is followed by a new file.

    Args:
        model: The target.
        prompts: Token ids (batch, length), all of one length.
        tokens: Tokens to add per row.
        heat: Softmax temperature; 0 takes the arg-max.
        seed: Decides the draws.

    Returns:
        Prompts with their continuations (batch, length + tokens), int64.
    """
    torch.manual_seed(seed)
    drawn = {"do_sample": True, "temperature": heat, "top_k": 0} if heat else {"do_sample": False}
    model.generation_config = GenerationConfig(pad_token_id=0, **drawn)
    text: Tensor = model.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=tokens
    )
    return text


def pieces(ids: Tensor, rows: int, length: int, seed: int) -> Tensor:
    """Pieces of ``ids`` (rows, length) to prompt with, from places that ``seed`` decides."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(ids) - length, (rows, 1), generator=generator)
    return ids[starts + torch.arange(length)]
