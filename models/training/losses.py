"""Losses over the vocabulary that never hold more than one chunk of logits.

Both losses are a cross-entropy between a distribution q and the softmax p of the logits, whose
gradient p - q needs nothing beyond p itself. So each chunk's gradients are formed while its logits
are at hand, in the forward pass, and the backward pass only scales them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

CHUNK = 1024
"""Positions whose logits exist at a time."""

Chunk = Callable[..., tuple[Tensor, Tensor, Tensor]]


def _gradients(
    logits: Tensor, q: Tensor, hidden: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Summed loss, its gradient for ``hidden`` and for ``weight``, all for one chunk."""
    log_p = logits - logits.logsumexp(-1, keepdim=True)
    loss = -(q * log_p).sum()
    grad = (log_p.exp() - q).to(hidden.dtype)
    return loss, grad @ weight, grad.t() @ hidden


def _hard_chunk(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy with ``labels`` (positions,)."""
    logits = (hidden @ weight.t()).float()
    q = (torch.arange(weight.shape[0]) == labels[:, None]).float()
    return _gradients(logits, q, hidden, weight)


def _soft_chunk(
    hidden: Tensor, weight: Tensor, teacher: Tensor, teacher_weight: Tensor, hard: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy with the teacher's distribution, a share ``hard`` of it on its arg-max."""
    wanted = (teacher @ teacher_weight.t()).float()
    best = (torch.arange(weight.shape[0]) == wanted.argmax(-1)[:, None]).float()
    q = (1 - hard) * wanted.softmax(-1) + hard * best
    logits = (hidden @ weight.t()).float()
    return _gradients(logits, q, hidden, weight)


class _ChunkLoss(torch.autograd.Function):
    """Run a chunk function over all positions and keep the gradients it returns."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        chunk: Chunk,
        by_row: Tensor,
        fixed: tuple[Any, ...],
    ) -> Tensor:
        positions = hidden.shape[0]
        small = weight.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight)
        total = torch.zeros(())
        for start in range(0, positions, CHUNK):
            rows = slice(start, start + CHUNK)
            loss, for_hidden, for_weight = chunk(hidden[rows], small, by_row[rows], *fixed)
            total += loss
            grad_hidden[rows] = for_hidden
            grad_weight += for_weight
        ctx.save_for_backward(grad_hidden / positions, grad_weight / positions)
        return total / positions

    @staticmethod
    def backward(
        ctx: Any,
        *grads: Tensor,
    ) -> tuple[Tensor, Tensor, None, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        scaled = grad_hidden * grads[0].to(grad_hidden.dtype)
        return scaled, grad_weight * grads[0], None, None, None


def _apply(chunk: Chunk, hidden: Tensor, weight: Tensor, by_row: Tensor, *fixed: object) -> Tensor:
    loss = _ChunkLoss.apply(hidden, weight, chunk, by_row, fixed)  # type: ignore[no-untyped-call]
    return cast("Tensor", loss)


class Losses:
    """The two losses, with their chunk functions compiled or not."""

    def __init__(self, compiled: bool) -> None:
        """Create the losses; ``compiled`` needs a C++ compiler and pays off after a minute."""

        def prepare(chunk: Chunk) -> Chunk:
            return cast("Chunk", torch.compile(chunk, dynamic=False)) if compiled else chunk

        self._hard = prepare(_hard_chunk)
        self._soft = prepare(_soft_chunk)

    def next_token(self, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of the next token, in nats per token.

        Args:
            hidden: Normalised hidden states (positions, hidden).
            weight: Tied embedding (vocab, hidden), float32.
            labels: The tokens that followed (positions,), int64.
        """
        return _apply(self._hard, hidden, weight, labels)

    def distillation(
        self, hidden: Tensor, weight: Tensor, teacher: Tensor, teacher_weight: Tensor, hard: float
    ) -> Tensor:
        """Mean cross-entropy with a teacher's distribution (Hinton et al. 2015), in nats per token.

        Its gradient is that of KL(teacher || student). A share of the teacher's probability is
        moved to its arg-max: a greedy draft is judged by that token alone.

        Args:
            hidden: The student's normalised hidden states (positions, student hidden).
            weight: The student's tied embedding (vocab, student hidden), float32.
            teacher: The teacher's normalised hidden states (positions, teacher hidden).
            teacher_weight: The teacher's tied embedding in ``teacher``'s dtype.
            hard: Share moved to the arg-max, between 0 and 1.
        """
        return _apply(self._soft, hidden, weight, teacher, teacher_weight, hard)
