"""What a decoder is made of, as names and sizes; nothing here holds a weight or emits a graph.

A decoder is a list of layers, a layer a list of sublayers. Each sublayer says what it needs by
name: norms, mask, rotation table, activation. `export/components` has the computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from edgespec.bundle.sublayers import CAUSAL, DEFAULT_ROPE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from edgespec.models.rope import Rope

Shapes = dict[str, tuple[int, ...]]
"""Tensor name to shape."""

Activation = Literal["silu", "gelu_tanh"]
"""Of an MLP's gate: x * sigmoid(x), or GELU by its approximation with tanh."""


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
        offset: Added to the weight: 1 where checkpoints hold its distance from 1.
    """

    weight: str
    size: int
    eps: float
    offset: float = 0.0

    def tensors(self) -> Shapes:
        """Name and shape of its tensor."""
        return {self.weight: (self.size,)}


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention.

    Attributes:
        norm: Applied to the residual stream first; None: it is read as it is.
        q: [hidden] to [heads * head_dim].
        k: [hidden] to [kv_heads * head_dim].
        v: [hidden] to [kv_heads * head_dim].
        o: [heads * head_dim] to [hidden].
        heads: Query heads, a multiple of kv_heads.
        kv_heads: Key and value heads.
        head_dim: Size of a head.
        scale: Scores are multiplied by it.
        q_norm: Applied before RoPE, if there is one: to each query head, or to all of them as one
            vector where it has their size.
        k_norm: The same for keys.
        post_norm: Applied to what the attention adds to the residual stream, if there is one.
        mask: Which positions a row sees, see `edgespec.bundle.sublayers.Sublayer`.
        rope: Name of the rotation table, see `Decoder.ropes`; empty: heads are not turned.
    """

    norm: Norm | None
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    post_norm: Norm | None = None
    mask: str = CAUSAL
    rope: str = DEFAULT_ROPE

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its matrices."""
        return self.q, self.k, self.v, self.o

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        norms = (self.norm, self.q_norm, self.k_norm, self.post_norm)
        return _union(part.tensors() for part in (*self.linears, *norms) if part is not None)


@dataclass(frozen=True)
class Mlp:
    """Gated MLP (Shazeer, 2020): `down(activation(gate(x)) * up(x))`.

    Attributes:
        norm: Applied to the residual stream first; None: it is read as it is.
        gate: [hidden] to [intermediate].
        up: [hidden] to [intermediate].
        down: [intermediate] to [hidden].
        activation: Of the gate.
        post_norm: Applied to what the MLP adds to the residual stream, if there is one.
    """

    norm: Norm | None
    gate: Linear
    up: Linear
    down: Linear
    activation: Activation = "silu"
    post_norm: Norm | None = None

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its matrices."""
        return self.gate, self.up, self.down

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        parts = (*self.linears, self.norm, self.post_norm)
        return _union(part.tensors() for part in parts if part is not None)


Sublayer = Attention | Mlp
"""Reads the residual stream and adds something to it."""


@dataclass(frozen=True)
class Decoder:
    """A decoder-only language model.

    Attributes:
        embedding: Name of the [vocab_size, hidden_size] tensor.
        vocab_size: Rows of the embedding; may exceed the tokenizer's vocabulary by padding.
        hidden_size: Size of the residual stream.
        layers: The sublayers of each layer, in order.
        norm: Applied before the head.
        lm_head: [hidden_size] to [vocab_size]; its weight is `embedding` when tied.
        tied: Whether embedding and head are one tensor.
        ropes: Rotation tables by name; the layers say which is theirs.
        context_length: The most positions the model was made for.
        embedding_scale: Rows of the embedding are multiplied by it.
    """

    embedding: str
    vocab_size: int
    hidden_size: int
    layers: tuple[tuple[Sublayer, ...], ...]
    norm: Norm
    lm_head: Linear
    tied: bool
    ropes: Mapping[str, Rope]
    context_length: int
    embedding_scale: float = 1.0

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        """Those of all layers, as they are numbered."""
        return tuple(sublayer for layer in self.layers for sublayer in layer)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Those among them that are attentions."""
        return tuple(each for each in self.sublayers if isinstance(each, Attention))

    def tensors(self) -> Shapes:
        """Names and shapes of all tensors, in the order of the computation; a tied one once."""
        return (
            {self.embedding: (self.vocab_size, self.hidden_size)}
            | _union(sublayer.tensors() for sublayer in self.sublayers)
            | self.norm.tensors()
            | self.lm_head.tensors()
        )


def _union(parts: Iterable[Shapes]) -> Shapes:
    return {name: shape for part in parts for name, shape in part.items()}
