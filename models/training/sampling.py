"""Text from the target: batched decoding with a KV cache, greedy or at a temperature."""

from __future__ import annotations

import torch
from network import Decoder, KVCache
from torch import Tensor


@torch.no_grad()
def generate(
    model: Decoder,
    prompts: Tensor,
    tokens: int,
    temperature: float,
    seed: int,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Continue each prompt by exactly ``tokens`` tokens; a file's end is followed by a new file.

    Args:
        model: The target.
        prompts: Token ids (batch, length), all of one length.
        tokens: Tokens to add per row.
        temperature: Softmax temperature; 0 takes the arg-max.
        seed: Decides the draws.
        dtype: Arithmetic dtype.

    Returns:
        Prompts with their continuations (batch, length + tokens), int64.
    """
    batch, length = prompts.shape
    generator = torch.Generator().manual_seed(seed)
    cache = KVCache.empty(model.shape, batch, length + tokens, dtype)
    text = torch.cat((prompts, prompts.new_zeros(batch, tokens)), dim=1)
    hidden = model(prompts, cache, dtype)[:, -1]
    for position in range(length, length + tokens):
        logits = model.logits(hidden)
        if temperature > 0:
            # The Gumbel-max trick (Gumbel 1954): an arg-max of exponential races is a draw.
            race = torch.empty_like(logits).exponential_(generator=generator)
            logits = (logits / temperature).softmax(-1) / race
        text[:, position] = logits.argmax(-1)
        if position + 1 < length + tokens:
            hidden = model(text[:, position : position + 1], cache, dtype)[:, -1]
    return text


def own_text(model: Decoder, ids: Tensor, rows: int, prompt: int, tokens: int, seed: int) -> Tensor:
    """Let the target continue pieces of code at temperature 0.8.

    Args:
        model: The target.
        ids: Tokens the prompts are cut from.
        rows: Rows to produce.
        prompt: Tokens of code per row.
        tokens: Tokens the target adds to each.
        seed: Decides the pieces and the draws.

    Returns:
        Rows of code and continuation (rows, prompt + tokens), int64.
    """
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(ids) - prompt, (rows, 1), generator=generator)
    return generate(model, ids[starts + torch.arange(prompt)], tokens, 0.8, seed)
