"""Text from the target: batched decoding with a KV cache, greedy or at a temperature."""

from __future__ import annotations

import torch
from network import ARITHMETIC, Decoder, KVCache
from torch import Tensor


@torch.no_grad()
def generate(
    model: Decoder,
    prompts: Tensor,
    tokens: int,
    temperature: float,
    seed: int,
    dtype: torch.dtype = ARITHMETIC,
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


def pieces(ids: Tensor, rows: int, length: int, seed: int) -> Tensor:
    """Pieces of ``ids`` (rows, length) to prompt with, from places that ``seed`` decides."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(ids) - length, (rows, 1), generator=generator)
    return ids[starts + torch.arange(length)]
