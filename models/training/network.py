"""The Llama-shape network as it is trained: float32 weights, :data:`ARITHMETIC` in between.

Parameter names are those of ``transformers``' ``LlamaForCausalLM``, so a state dict moves to a
checkpoint folder unchanged. Training does not use that class itself because on a CPU the time goes
into memory traffic, and here the residual stream stays narrow and nothing but the chunks of
``losses.py`` ever holds a float32 tensor of vocabulary width.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

ARITHMETIC = torch.bfloat16 if torch.cpu.get_capabilities().get("avx512_bf16") else torch.float32
"""The dtype of products: without instructions for bfloat16, float32 is several times faster."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one Llama-shape decoder with tied embeddings.

    Attributes:
        layers: Number of decoder layers.
        hidden: Width of the residual stream.
        heads: Query heads.
        kv_heads: Key/value heads (grouped-query attention, Ainslie et al. 2023).
        head_dim: Width of one head.
        inter: Width of the gated feed-forward layer.
        vocab: Vocabulary entries.
        context: Maximum number of positions, as in the checkpoint. The target's limits the length
            of texts. A draft's should be what it was trained on: it only sees the end of longer
            texts.
        rope_theta: Base of the rotary embedding (Su et al. 2021).
        eps: RMSNorm epsilon.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inter: int
    vocab: int = 4096
    context: int = 2048
    rope_theta: float = 10000.0
    eps: float = 1e-5

    def asdict(self) -> dict[str, int | float]:
        """The sizes as a plain dictionary, for a checkpoint's metadata."""
        return asdict(self)


TARGET = Shape(layers=8, hidden=256, heads=4, kv_heads=2, head_dim=64, inter=768)
DRAFT = Shape(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=32, inter=384, context=512)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation (Zhang & Sennrich 2019), computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        """Create a norm over the last axis, of size ``width``."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` (..., width); the result has ``x``'s dtype."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(x.dtype)


class Linear(nn.Linear):
    """A bias-free linear layer that multiplies in its input's dtype."""

    def __init__(self, inputs: int, outputs: int) -> None:
        """Create an ``inputs`` to ``outputs`` map."""
        super().__init__(inputs, outputs, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to ``input`` (..., inputs)."""
        return functional.linear(input, self.weight.to(input.dtype))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the two halves of each head of ``x`` (batch, heads, length, head_dim)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


@dataclass
class KVCache:
    """Keys and values of the positions decoded so far, in place.

    Attributes:
        keys: Storage (layers, batch, kv_heads, capacity, head_dim).
        values: Storage of the same shape.
        length: Positions filled, in tokens.
    """

    keys: Tensor
    values: Tensor
    length: int = 0

    @classmethod
    def empty(cls, shape: Shape, batch: int, capacity: int, dtype: torch.dtype) -> KVCache:
        """Room for ``capacity`` positions of ``batch`` rows."""
        size = (shape.layers, batch, shape.kv_heads, capacity, shape.head_dim)
        return cls(torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype))


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        """Create the four projections for ``shape``."""
        super().__init__()
        self.shape = shape
        self.q_proj = Linear(shape.hidden, shape.heads * shape.head_dim)
        self.k_proj = Linear(shape.hidden, shape.kv_heads * shape.head_dim)
        self.v_proj = Linear(shape.hidden, shape.kv_heads * shape.head_dim)
        self.o_proj = Linear(shape.heads * shape.head_dim, shape.hidden)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | None, layer: int
    ) -> Tensor:
        """Attend over the cached positions and ``x`` (batch, length, hidden), normalised.

        Args:
            x: Normalised residual stream (batch, length, hidden).
            cos: Rotary cosines (length, head_dim).
            sin: Rotary sines (length, head_dim).
            cache: Where this layer's keys and values are read from and written to, if anywhere.
            layer: Index of this layer in the cache.
        """
        batch, length, _ = x.shape
        q, k, v = (
            project(x).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        groups = self.shape.heads // self.shape.kv_heads
        if cache is not None:
            stop = cache.length + length
            cache.keys[layer, :, :, cache.length : stop] = k
            cache.values[layer, :, :, cache.length : stop] = v
        if cache is not None and length == 1:
            # One position sees everything, so the heads of a group can pass as its positions.
            mixed = functional.scaled_dot_product_attention(
                q.view(batch, self.shape.kv_heads, groups, -1),
                cache.keys[layer, :, :, :stop],
                cache.values[layer, :, :, :stop],
            ).reshape(batch, 1, -1)
        else:
            mixed = functional.scaled_dot_product_attention(
                q,
                k.repeat_interleave(groups, dim=1),
                v.repeat_interleave(groups, dim=1),
                is_causal=True,
            )
            mixed = mixed.transpose(1, 2).reshape(batch, length, -1)
        return cast("Tensor", self.o_proj(mixed))


class FeedForward(nn.Module):
    """The gated feed-forward layer (SwiGLU, Shazeer 2020)."""

    def __init__(self, shape: Shape) -> None:
        """Create the three projections for ``shape``."""
        super().__init__()
        self.gate_proj = Linear(shape.hidden, shape.inter)
        self.up_proj = Linear(shape.hidden, shape.inter)
        self.down_proj = Linear(shape.inter, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` (batch, length, hidden) to the same shape."""
        gated = functional.silu(self.gate_proj(x)) * self.up_proj(x)
        return cast("Tensor", self.down_proj(gated))


class Layer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, shape: Shape) -> None:
        """Create attention, feed-forward and their norms for ``shape``."""
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = FeedForward(shape)
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | None, layer: int
    ) -> Tensor:
        """Add both blocks to the residual stream; arguments as for :class:`Attention`."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache, layer)
        return cast("Tensor", x + self.mlp(self.post_attention_layernorm(x)))


class Decoder(nn.Module):
    """Embedding, layers and final norm: what ``transformers`` calls ``model``."""

    def __init__(self, shape: Shape) -> None:
        """Create an initialised decoder of ``shape``."""
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.eps)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and name.startswith("layers."):
                std = 0.5 / math.sqrt(weight.shape[1])
                output = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=std / math.sqrt(2 * shape.layers) if output else std)
        steps = torch.arange(0, shape.head_dim, 2).float() / shape.head_dim
        angles = torch.outer(torch.arange(shape.context).float(), shape.rope_theta**-steps)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(
        self, ids: Tensor, cache: KVCache | None = None, dtype: torch.dtype = ARITHMETIC
    ) -> Tensor:
        """Run the decoder.

        Args:
            ids: Token ids (batch, length), int64.
            cache: Earlier positions; ``ids`` is appended to it. Unless it is empty, ``ids`` must
                be one position long.
            dtype: Arithmetic dtype; norms are always float32 inside.

        Returns:
            Normalised hidden states (batch, length, hidden) in ``dtype``.

        Raises:
            ValueError: If several positions are appended to a cache that is not empty.
        """
        start = 0 if cache is None else cache.length
        stop = start + ids.shape[1]
        if start > 0 and ids.shape[1] > 1:
            raise ValueError(
                f"{ids.shape[1]} positions after {start} cached ones: append them one at a time"
            )
        cos = cast("Tensor", self.cos)[start:stop].to(dtype)
        sin = cast("Tensor", self.sin)[start:stop].to(dtype)
        x = self.embed_tokens(ids).to(dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, cache, index)
        if cache is not None:
            cache.length = stop
        return cast("Tensor", self.norm(x))

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits (..., vocab) of normalised hidden states (..., hidden)."""
        # bfloat16 logits would tie: at 16 their spacing is an eighth.
        return hidden.float() @ self.embed_tokens.weight.float().t()
