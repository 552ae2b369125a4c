"""Measurements of the pair: loss, agreement of the draft with the target, repetition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from network import ARITHMETIC, Decoder
from torch import Tensor
from torch.nn import functional

RANKS = 4
ROWS = 4
"""Rows whose logits exist at a time."""


def rows_of(ids: Tensor, length: int) -> Tensor:
    """Cut ``ids`` into windows (rows, length + 1), each label seen once."""
    count = (len(ids) - 1) // length
    return ids[torch.arange(count)[:, None] * length + torch.arange(length + 1)]


@torch.no_grad()
def loss(model: Decoder, windows: Tensor, dtype: torch.dtype = ARITHMETIC) -> float:
    """Mean next-token loss over ``windows`` (rows, length + 1), in nats per token."""
    total = 0.0
    for rows in torch.split(windows, ROWS):
        logits = model.logits(model(rows[:, :-1], dtype=dtype))
        total += float(
            functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")
        )
    return total / windows[:, 1:].numel()


@torch.no_grad()
def compare(
    draft: Decoder,
    target: Decoder,
    windows: Tensor,
    start: int = 0,
    dtype: torch.dtype = ARITHMETIC,
) -> dict[str, float]:
    """How well the draft predicts the target when both read the same text.

    Args:
        draft: The draft.
        target: The target.
        windows: Text both read (rows, length + 1).
        start: Positions before this one are context only.
        dtype: Arithmetic dtype.

    Returns:
        ``rank1`` to ``rank4``: share of positions at which the draft's token of that rank is the
        target's arg-max. ``acceptance``: mean over positions of the sum over tokens of
        min(draft, target) at temperature 1, which is the chance that speculative sampling
        (Leviathan et al. 2023) accepts one drafted token. ``kl``: mean KL(target || draft), nats.
        ``target_loss`` and ``draft_loss``: mean loss on the text itself, nats per token.
    """
    hits, sums, positions = torch.zeros(RANKS), torch.zeros(4), 0
    for rows in torch.split(windows, ROWS):
        text, following = rows[:, :-1], rows[:, start + 1 :, None]
        wanted = target.logits(target(text, dtype=dtype)[:, start:]).log_softmax(-1)
        given = draft.logits(draft(text, dtype=dtype)[:, start:]).log_softmax(-1)
        best = given.topk(RANKS, dim=-1).indices
        hits += (best == wanted.argmax(-1, keepdim=True)).sum((0, 1))
        chance = wanted.exp()
        sums[0] += torch.minimum(chance, given.exp()).sum()
        sums[1] += (chance * (wanted - given)).sum()
        sums[2] -= wanted.gather(-1, following).sum()
        sums[3] -= given.gather(-1, following).sum()
        positions += following.numel()
    result = {f"rank{i + 1}": float(hit) / positions for i, hit in enumerate(hits)}
    names = ("acceptance", "kl", "target_loss", "draft_loss")
    return result | {name: float(s) / positions for name, s in zip(names, sums, strict=True)}


def repeated(ids: Sequence[int], size: int = 8) -> float:
    """The share of ``ids``' runs of ``size`` tokens that occurred before in ``ids``."""
    runs = Counter(tuple(ids[i : i + size]) for i in range(len(ids) - size + 1))
    total = sum(runs.values())
    return (total - len(runs)) / total if total else 0.0
