"""What layers are made of: matrices, norms, convolutions and activations, by names and sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Shapes = dict[str, tuple[int, ...]]
"""Tensor name to shape."""


@dataclass(frozen=True)
class ClampedSwiglu:
    """gpt-oss's product of gate g and up u: `g * sigmoid(alpha * g) * (u + 1)`, both clamped.

    Attributes:
        alpha: Slope of the sigmoid.
        limit: Largest gate, and largest magnitude of up.
    """

    alpha: float
    limit: float


Activation = Literal["silu", "gelu", "gelu_tanh", "relu2"] | ClampedSwiglu
"""Activation of an MLP's gate: x * sigmoid(x), GELU, GELU approximated with tanh, the square of
what is positive, or gpt-oss's."""

PlainActivation = Literal["relu", "relu2", "gelu", "gelu_tanh", "tanh"]
"""Activation without a gate: what is positive, or its square, GELU in two forms, or tanh."""


@dataclass(frozen=True)
class Linear:
    """`y = x @ weight.T + bias`.

    Attributes:
        weight: Name of the [out_features, in_features] tensor.
        in_features: Size of x.
        out_features: Size of y.
        bias: Name of the [out_features] tensor; None if there is none.
    """

    weight: str
    in_features: int
    out_features: int
    bias: str | None = None

    def tensors(self) -> Shapes:
        """Returns names and shapes of its tensors."""
        shapes: Shapes = {self.weight: (self.out_features, self.in_features)}
        if self.bias is not None:
            shapes[self.bias] = (self.out_features,)
        return shapes


@dataclass(frozen=True)
class Norm:
    """RMS normalization (Zhang and Sennrich, 2019): `weight * x / sqrt(mean(x²) + eps)`.

    Attributes:
        weight: Name of the [size] tensor; empty: there is none, as if it were all ones.
        size: Size of x.
        eps: Added to the mean square.
        offset: Added to the weight; 1 if checkpoints store the weight minus 1.
        factor: Factor of the result.
    """

    weight: str
    size: int
    eps: float
    offset: float = 0.0
    factor: float = 1.0

    def tensors(self) -> Shapes:
        """Returns names and shapes of its tensors."""
        return {self.weight: (self.size,)} if self.weight else {}


@dataclass(frozen=True)
class LayerNorm(Norm):
    """Layer normalization (Ba et al., 2016): of x without its mean, and with a bias added.

    Attributes:
        bias: Name of the [size] tensor; None: nothing is added.
    """

    bias: str | None = field(kw_only=True)

    def tensors(self) -> Shapes:
        """Returns names and shapes of its tensors."""
        bias: Shapes = {} if self.bias is None else {self.bias: (self.size,)}
        return {**super().tensors(), **bias}


@dataclass(frozen=True)
class Convolution:
    """Convolution of each channel with its last positions.

    `y[t]` is the sum of `w[j] x[t - size + 1 + j]` over j.

    Attributes:
        weight: Name of the [channels, 1, size] tensor.
        channels: Number of channels.
        size: Number of positions, the current one included.
        bias: Name of the [channels] tensor that is added; None: nothing is.
    """

    weight: str
    channels: int
    size: int
    bias: str | None = None

    def tensors(self) -> Shapes:
        """Returns names and shapes of its tensors."""
        bias: Shapes = {} if self.bias is None else {self.bias: (self.channels,)}
        return {self.weight: (self.channels, 1, self.size), **bias}


class Compound:
    """What is made of matrices, norms and the like: a dataclass, whose fields these are.

    Of sublayers, `norm` is applied to the input, `post_norm` to the output, and `output_factor` is
    a factor of this; `sum_norm` is applied to the stream, once the output is added. Where a norm is
    None, there is none.
    """

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its matrices."""
        return tuple(each for each in self._fields() if isinstance(each, Linear))

    @property
    def stacks(self) -> tuple[tuple[Linear, ...], ...]:
        """Those of its matrices that have one format, since they are multiplied as one."""
        return ()

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors, the matrices first."""
        kinds = Linear, Norm, Convolution, Compound
        found = [each for each in self._fields() if isinstance(each, kinds)]
        return union(each.tensors() for each in (*self.linears, *found))

    def _fields(self) -> Iterator[object]:
        """Yields its fields, of a tuple each member."""
        for value in vars(self).values():
            yield from value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True)
class Xielu(Compound):
    """xIELU, an activation with learned parameters (Huang and Schlag, 2024).

    With p and n, the softplus of parameters, it is `p x² + b x` of a positive x, and of others
    `(n + b) (exp(x) - 1 - x) + b x`.

    Attributes:
        positive: Name of the [1] tensor of whose number p is the softplus.
        negative: The same of n.
        slope: Name of the tensor of the number b.
        least: Name of the tensor of the number below which the exponential is taken, for training:
            with one so near to 0 as in checkpoints, no result depends on it.
    """

    positive: str
    negative: str
    slope: str
    least: str

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        learned = dict.fromkeys((self.positive, self.negative), (1,))
        return {**learned, **dict.fromkeys((self.slope, self.least), ())}


def union(parts: Iterable[Shapes]) -> Shapes:
    """Returns names and shapes of all tensors, a tensor of several parts once."""
    return {name: shape for part in parts for name, shape in part.items()}
