"""What a decoder is made of, as names and sizes; nothing here holds a weight or emits a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgespec.models.rope import Rope

Shapes = dict[str, tuple[int, ...]]
"""Tensor name to shape."""


@dataclass(frozen=True)
class Linear:
    """`y = x @ weight.T + bias`.

    Attributes:
        weight: Name of the [out_features, in_features] tensor.
        in_features: Size of x.
        out_features: Size of y.
        bias: Name of the [out_features] tensor, if there is one.
    """

    weight: str
    in_features: int
    out_features: int
    bias: str | None = None

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        shapes: Shapes = {self.weight: (self.out_features, self.in_features)}
        if self.bias is not None:
            shapes[self.bias] = (self.out_features,)
        return shapes


@dataclass(frozen=True)
class Norm:
    """RMS normalization (Zhang and Sennrich, 2019): `weight * x / sqrt(mean(x²) + eps)`.

    Attributes:
        weight: Name of the [size] tensor.
        size: Size of x.
        eps: Added to the mean square.
    """

    weight: str
    size: int
    eps: float

    def tensors(self) -> Shapes:
        """Name and shape of its tensor."""
        return {self.weight: (self.size,)}


@dataclass(frozen=True)
class Attention:
    """Pre-normalized grouped-query attention; scores are scaled by head_dim ** -0.5.

    Attributes:
        norm: Applied to the residual stream first.
        q: [hidden] to [heads * head_dim].
        k: [hidden] to [kv_heads * head_dim].
        v: [hidden] to [kv_heads * head_dim].
        o: [heads * head_dim] to [hidden].
        heads: Query heads, a multiple of kv_heads.
        kv_heads: Key and value heads.
        head_dim: Size of a head.
        q_norm: Applied to each query head before RoPE, if there is one.
        k_norm: Applied to each key head before RoPE, if there is one.
    """

    norm: Norm
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    heads: int
    kv_heads: int
    head_dim: int
    q_norm: Norm | None = None
    k_norm: Norm | None = None

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        parts = (self.norm, self.q, self.k, self.v, self.o, self.q_norm, self.k_norm)
        return _union(part.tensors() for part in parts if part is not None)


@dataclass(frozen=True)
class Mlp:
    """Pre-normalized gated MLP (Shazeer, 2020): `down(silu(gate(x)) * up(x))`.

    Attributes:
        norm: Applied to the residual stream first.
        gate: [hidden] to [intermediate].
        up: [hidden] to [intermediate].
        down: [intermediate] to [hidden].
    """

    norm: Norm
    gate: Linear
    up: Linear
    down: Linear

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        return _union(part.tensors() for part in (self.norm, self.gate, self.up, self.down))


@dataclass(frozen=True)
class Decoder:
    """A decoder-only language model.

    Attributes:
        embedding: Name of the [vocab_size, hidden_size] tensor.
        vocab_size: Rows of the embedding; may exceed the tokenizer's vocabulary by padding.
        hidden_size: Size of the residual stream.
        layers: Attention and MLP of each layer, in order.
        norm: Applied before the head.
        lm_head: [hidden_size] to [vocab_size]; its weight is `embedding` when tied.
        tied: Whether embedding and head are one tensor.
        rope: Shared by all layers.
        context_length: The most positions the model was made for.
    """

    embedding: str
    vocab_size: int
    hidden_size: int
    layers: tuple[tuple[Attention, Mlp], ...]
    norm: Norm
    lm_head: Linear
    tied: bool
    rope: Rope
    context_length: int

    def tensors(self) -> Shapes:
        """Names and shapes of all tensors, in the order of the computation; a tied one once."""
        sublayers = (sublayer for layer in self.layers for sublayer in layer)
        return (
            {self.embedding: (self.vocab_size, self.hidden_size)}
            | _union(sublayer.tensors() for sublayer in sublayers)
            | self.norm.tensors()
            | self.lm_head.tensors()
        )


def _union(parts: Iterable[Shapes]) -> Shapes:
    return {name: shape for part in parts for name, shape in part.items()}
