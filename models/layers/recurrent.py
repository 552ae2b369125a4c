"""Layers that carry something from position to position besides keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgespec.models.layers.elements import Compound, Convolution, Linear, Norm, Shapes


@dataclass(frozen=True)
class ShortConvolution(Compound):
    """Gated convolution over a few positions (LFM2, Liquid AI, 2025).

    `out(c * convolution(b * x))`, where b, c and x are the three parts of `inner`'s result.

    Attributes:
        inner: [hidden] to [3 * hidden].
        convolution: The convolution.
        out: [hidden] to [hidden].
    """

    norm: Norm
    inner: Linear
    convolution: Convolution
    out: Linear
    post_norm: Norm | None = None
    output_factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Recurrence(Compound):
    """What has a state for each head, a [key_size, value_size] matrix S, behind a convolution.

    At each position, with key k, query q and value v of a head: S is multiplied by a decay, a
    multiple of k is added that depends on v, and the result is q S.

    Attributes:
        convolutions: Applied to queries, keys and values, with a SiLU behind them: one, or several
            of channels side by side, which read equally many positions.
        log_decay: Name of a [value heads] tensor A, of which the decay is made.
        decay_bias: Name of a [value heads * decay_size] tensor that is added where it is made.
        result_norm: Applied to results; None: no normalization.
        key_heads: Number of query and key heads.
        value_heads: Number of value heads, a multiple of key_heads.
        key_size: Size of a key.
        value_size: Size of a value.
        decay_size: Number of a head's decays: 1, or key_size where each row of S has its own.
    """

    norm: Norm | None
    convolutions: tuple[Convolution, ...]
    log_decay: str
    decay_bias: str
    result_norm: Norm | None
    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    decay_size: int = 1
    post_norm: Norm | None = None
    output_factor: float = 1.0

    @property
    def channels(self) -> int:
        """Numbers of all queries, keys and values of a row."""
        return 2 * self.key_heads * self.key_size + self.value_heads * self.value_size

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        own: Shapes = {
            self.log_decay: (self.value_heads,),
            self.decay_bias: (self.value_heads * self.decay_size,),
        }
        return super().tensors() | own


@dataclass(frozen=True, kw_only=True)
class GatedDelta(Recurrence):
    """Linear attention by the gated delta rule (Yang et al., 2025).

    S is multiplied by exp(-exp(A) softplus(a + bias)), and k (rate (v - k S)) is added. Each head's
    result is normalized, and multiplied by the activation of a gate. In Kimi Delta Attention (Kimi
    Team, 2025) each row of S has an a of its own.

    Attributes:
        mixed: [hidden] to queries and keys of all key heads and values of all value heads: one, or
            several whose results lie side by side.
        gate: [hidden], or what `gate_in` gives, to [value heads * value_size], the gates.
        rate: [hidden] to [value heads]; its sigmoid is the rate.
        decay: [hidden], or what `decay_in` gives, to [value heads * decay_size]; a.
        out: [value heads * value_size] to [hidden].
        gate_in: [hidden] to the narrower row that `gate` reads; None: it reads the input.
        decay_in: The same of `decay`.
        activation: Activation of gates.
    """

    mixed: tuple[Linear, ...]
    gate: Linear
    rate: Linear
    decay: Linear
    out: Linear
    gate_in: Linear | None = None
    decay_in: Linear | None = None
    activation: Literal["silu", "sigmoid"] = "silu"


@dataclass(frozen=True, kw_only=True)
class StateSpace(Recurrence):
    """State space model (Dao and Gu, Mamba-2, 2024).

    With a step, softplus(a + bias), S is multiplied by exp(-exp(A) step), and k (step v) is added.
    Results, with skip * v added, times the SiLU of gates are normalized together by key head.

    Attributes:
        inner: [hidden] to gates and values of all value heads, keys and queries of all key heads,
            and an a of each value head.
        skip: Name of the [value heads] tensor.
        out: [value heads * value_size] to [hidden].
    """

    inner: Linear
    skip: str
    out: Linear

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        return super().tensors() | {self.skip: (self.value_heads,)}


Recurrent = ShortConvolution | GatedDelta | StateSpace
"""A sublayer that carries something from position to position besides keys and values."""
