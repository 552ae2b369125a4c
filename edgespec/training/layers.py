"""What the kinds of draft heads are built of, in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgespec.training.shape import HeadShape


class RMSNorm(nn.Module):
    """Root mean square normalization (Zhang and Sennrich, 2019)."""

    def __init__(self, width: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps
        self._offset = offset

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes the last axis, in float32."""
        weight = self.weight + self._offset
        return functional.rms_norm(x.float(), weight.shape, weight, self._eps)


class Projections(nn.Module):
    """The four matrices of an attention.

    Args:
        shape: sizes of the head.
        width: width of the rows that it reads.
    """

    def __init__(self, shape: HeadShape, width: int) -> None:
        super().__init__()
        inner = shape.heads * shape.head_dim
        kv = shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(width, inner, bias=False)
        self.k_proj = nn.Linear(width, kv, bias=False)
        self.v_proj = nn.Linear(width, kv, bias=False)
        self.o_proj = nn.Linear(inner, shape.hidden, bias=False)
        self._size = shape.head_dim

    def forward(self, x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values of rows, [B, heads, n, head_dim] each.

        Args:
            x: [B, n, width].
            turns: [2, ..., n, head_dim] rotation of their positions.
        """
        query, key, value = map(self.heads, (self.q_proj(x), self.k_proj(x), self.v_proj(x)))
        return rotated(query, turns), rotated(key, turns), value

    def heads(self, x: Tensor) -> Tensor:
        """Returns rows [B, n, heads * head_dim] by head."""
        return x.view(*x.shape[:2], -1, self._size).transpose(1, 2)


class MlpModule(nn.Module):
    """SwiGLU (Shazeer, 2020)."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns what is added to rows [..., H]."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


def rotation(shape: HeadShape, length: int, device: torch.device) -> Tensor:
    """Returns cosines and sines of the first positions, [2, length, `shape.rotated`]."""
    size = shape.rotated
    frequencies = shape.theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin())).float().to(device)


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotates the halves of each head's first dimensions (RoPE, Su et al., 2021)."""
    cos, sin = rotation.to(x.dtype)
    size = cos.shape[-1]
    own, rest = torch.split_with_sizes(x, (size, x.shape[-1] - size), -1)
    low, high = own.chunk(2, dim=-1)
    return torch.cat((own * cos + torch.cat((-high, low), dim=-1) * sin, rest), -1)
