"""What draft heads of all layouts have in common: how tests teach them, and their arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import cross_entropy

Tensor = torch.Tensor


@contextmanager
def repeatable() -> Iterator[None]:
    """Seeds torch, and gives it one thread: products are small, and other tests run beside it."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def continuations(model: Any, prompt: list[int], sampled: Sequence[bool]) -> list[list[int]]:
    """Returns texts that begin with a prompt, each sampled or greedy."""
    tokens, most = torch.tensor([prompt]), {"max_new_tokens": 120, "pad_token_id": 0}
    return [model.generate(tokens, do_sample=each, **most)[0].tolist() for each in sampled]


def teach(
    step: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    hidden: Callable[[int, int], Tensor],
    weights: Sequence[Tensor],
    texts: Sequence[list[int]],
    times: int,
) -> None:
    """Has a head learn two steps of drafting at every place of some texts.

    Args:
        step: the head's; see `HeadReference.step`.
        hidden: returns the first rows that the head reads of a text, by its index and their number.
        weights: what is learned.
        texts: token ids.
        times: how often all texts are read.
    """
    optimizer = torch.optim.Adam(weights, lr=3e-3)
    for _ in range(times):
        loss = torch.zeros(())
        for index, text in enumerate(texts):
            n = len(text) - 1
            tokens, sees = torch.tensor(text[1:]), torch.ones(n, n).tril().bool()
            logits, own = step(tokens, hidden(index, n), torch.arange(n), sees)
            loss = loss + cross_entropy(logits[:-1], tokens[1:])
            # The second step of a draft reads the head's own rows.
            moved = torch.cat([own[:1], own[:-1]])
            logits, _ = step(tokens, moved, torch.arange(n), sees)
            loss = loss + cross_entropy(logits[:-1], tokens[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def rms(x: Tensor, epsilon: float) -> Tensor:
    """RMS normalization without weights."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def turned(x: Tensor, positions: Tensor, theta: float, rotated: int) -> Tensor:
    """Rotary embedding of heads [heads, n, dim], of which the first `rotated` numbers turn."""
    freq = theta ** -(torch.arange(0, rotated, 2).double() / rotated)
    angles = positions.double()[:, None] * freq
    cos, sin = (torch.cat([f(angles)] * 2, 1).float() for f in (torch.cos, torch.sin))
    x, rest = x[..., :rotated], x[..., rotated:]
    first, second = x.chunk(2, -1)
    return torch.cat([x * cos + torch.cat([-second, first], -1) * sin, rest], -1)


def attended(q: Tensor, k: Tensor, v: Tensor, sees: Tensor) -> Tensor:
    """Attention of heads [heads, n, dim], of which k and v may have fewer: [n, heads * dim]."""
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    shares = scores.masked_fill(~sees, float("-inf")).softmax(-1)
    return (shares @ v).transpose(0, 1).reshape(q.shape[1], -1)
