"""A feature-level draft head (EAGLE-3: Li et al., 2025) and its loss, in PyTorch.

A head reads, at each position, the embedding of the next token and the target's hidden rows there,
and predicts the token after the next. Deeper predictions read the head's own output instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgespec.training.shape import GATED, HeadShape

_LOSS_ROWS = 256  # rows of logits that are in memory at once


@dataclass(frozen=True)
class Step:
    """The predictions of one depth.

    Attributes:
        rows: [B, n, H], normalized, ready for the output projection. Row b of a text of L tokens
            predicts token b + depth + 2; n is L - 1 - depth.
        depth: number of the head's own outputs that the predictions build on.
    """

    rows: Tensor
    depth: int


class RMSNorm(nn.Module):
    """Root mean square normalization (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes the last axis, in float32."""
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self._eps)


class _Attention(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        width, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.mixed, width, bias=False)
        self.k_proj = nn.Linear(shape.mixed, kv, bias=False)
        self.v_proj = nn.Linear(shape.mixed, kv, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden, bias=False)


class _Mlp(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.hidden_norm = RMSNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.self_attn = _Attention(shape)
        self.mlp = _Mlp(shape)
        if shape.fusion == GATED:
            self.fusion_gate = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)


class DraftHead(nn.Module):
    """A head without its output projection, which is the target's and stays as it is.

    Args:
        shape: its sizes.
    """

    _sines: Tensor

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(shape.features, shape.hidden, bias=False)
        self.midlayer = _Layer(shape)
        self.norm = RMSNorm(shape.hidden, shape.eps)

    def start(self, norm: Tensor, seed: int) -> None:
        """Sets all weights as they are before the training.

        The head begins as the last tap alone, and with the target's own final norm.

        Args:
            norm: [H] weight of the target's final norm.
            seed: seed of the random weights.
        """
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, each in self.named_parameters():
                if each.ndim > 1:
                    small = 0.1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                    each.normal_(0, small / math.sqrt(each.shape[1]), generator=random)
            self.fc.weight.mul_(0.01)
            self.fc.weight[:, -self.shape.hidden :] += torch.eye(self.shape.hidden)
            self.norm.weight.copy_(norm)

    def unroll(self, features: Tensor, embedded: Tensor, steps: int) -> Iterator[Step]:
        """Predicts at every position, and again from its own outputs ("training-time test").

        At depth s, row b stands for position b + s: its hidden row is the output of depth s - 1 at
        row b. It sees the keys of depth 0 up to row b, and those of its own row at later depths.

        Args:
            features: [B, L, F] rows of the target.
            embedded: [B, L, H] embeddings of the texts' tokens.
            steps: number of depths.
        """
        layer, length = self.midlayer, features.shape[1]
        tokens = layer.input_layernorm(embedded)
        rotation = self._rotation(length, features.device)
        hidden = self.fc(features).float()
        first: tuple[Tensor, Tensor] | None = None
        own: list[tuple[Tensor, Tensor]] = []
        for depth in range(min(steps, length - 1)):
            n = length - 1 - depth
            hidden = hidden[:, :n]
            mixed = self._mix(tokens[:, depth + 1 :], layer.hidden_norm(hidden))
            query, key, value = self._attended(mixed, rotation[:, depth : depth + n])
            if first is None:
                first = key, value
            else:
                own.append((key, value))
            seen = first[0][:, :, :n], first[1][:, :, :n]
            own = [(k[:, :, :n], v[:, :, :n]) for k, v in own]
            hidden = hidden + layer.self_attn.o_proj(_attend(query, seen, own))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            yield Step(self.norm(hidden), depth)

    def _mix(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        both = torch.cat((tokens, hidden), dim=-1)
        if self.shape.fusion != GATED:
            return both
        gate = torch.sigmoid(self.midlayer.fusion_gate(both).float())
        return gate * hidden + (1 - gate) * tokens

    def _attended(self, mixed: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values, [B, heads, n, head_dim] each."""
        attention, size = self.midlayer.self_attn, self.shape.head_dim
        query, key, value = (
            made(mixed).unflatten(-1, (-1, size)).transpose(1, 2)
            for made in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        return _rotate(query, rotation), _rotate(key, rotation), value

    def _rotation(self, length: int, device: torch.device) -> Tensor:
        """Returns cosines and sines of all positions, [2, L, head_dim]."""
        size = self.shape.head_dim
        frequencies = self.shape.theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return torch.stack((angles.cos(), angles.sin())).float().to(device)


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotates the halves of each head (RoPE, Su et al., 2021)."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = rotation.to(x.dtype)
    rotated: Tensor = x * cos + torch.cat((-high, low), dim=-1) * sin
    return rotated


def _attend(query: Tensor, seen: tuple[Tensor, Tensor], own: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Attends to the keys of depth 0 up to each row, and to the row's own later ones.

    Args:
        query: [B, heads, n, head_dim].
        seen: keys and values of depth 0, [B, kv_heads, n, head_dim] each.
        own: keys and values of each later depth, the same.

    Returns:
        [B, n, heads * head_dim].
    """
    keys, values = seen
    batch, kv_heads, n, size = keys.shape
    query = query.reshape(batch, kv_heads, -1, n, size) / math.sqrt(size)
    scores = query @ keys[:, :, None].transpose(-1, -2)
    future = torch.ones(n, n, dtype=torch.bool, device=scores.device).triu(1)
    scores = scores.masked_fill(future, -torch.inf)
    later = [(query * key[:, :, None]).sum(-1, keepdim=True) for key, _ in own]
    shares = torch.cat((scores, *later), dim=-1).float().softmax(dim=-1).to(values.dtype)
    out = shares[..., :n] @ values[:, :, None]
    for number, (_, value) in enumerate(own):
        out = out + shares[..., n + number, None] * value[:, :, None]
    return out.permute(0, 3, 1, 2, 4).reshape(batch, n, -1)


class ProjectedLoss(torch.autograd.Function):
    """Cross entropy against the target's likeliest tokens, through a projection that stays frozen.

    Logits and their gradient exist for some rows at a time.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, projection: Tensor, ids: Tensor, shares: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the loss and the likeliest token of each row.

        Args:
            ctx: where the gradient is kept.
            rows: [N, H].
            projection: [V, H], in the precision of the products.
            ids: [N, K] tokens of the draft vocabulary.
            shares: [N, K] their probabilities; rows of zeros count nothing.
        """
        losses, choices, gradients = [], [], []
        for part in range(0, len(rows), _LOSS_ROWS):
            x = rows[part : part + _LOSS_ROWS].to(projection.dtype)
            chosen, share = ids[part : part + _LOSS_ROWS], shares[part : part + _LOSS_ROWS]
            logits = (x @ projection.T).float()
            peaks, best = logits.max(dim=-1)
            picked = (logits.gather(1, chosen) * share).sum(-1)
            total = share.sum(-1)
            logits.sub_(peaks[:, None]).exp_()
            mass = logits.sum(-1)
            losses.append(total * (peaks + mass.log()) - picked)
            choices.append(best)
            if ctx.needs_input_grad[0]:
                logits.mul_((total / mass)[:, None]).scatter_add_(1, chosen, -share)
                gradients.append((logits.to(projection.dtype) @ projection).float())
        if gradients:
            ctx.save_for_backward(torch.cat(gradients))
        found = torch.cat(choices)
        ctx.mark_non_differentiable(found)
        return torch.cat(losses), found

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradient of the rows."""
        (gradients,) = ctx.saved_tensors
        return gradients * upstream[0][:, None], None, None, None
