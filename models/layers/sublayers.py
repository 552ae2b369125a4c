"""Describes the sublayers of a decoder by names and sizes, without weights or computation.

A decoder is a list of layers, and a layer a list of sublayers. Each sublayer names what it needs:
norms, mask, rotation table, activation. `export/native` implements the computation.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.bundle.sublayers import CAUSAL, DEFAULT_ROPE, behind_of, in_chunks, window_of
from edgespec.models.layers.distances import BUCKETS
from edgespec.models.layers.elements import (
    Activation,
    Compound,
    Linear,
    Norm,
    PlainActivation,
    Shapes,
    Xielu,
)
from edgespec.models.layers.recurrent import Recurrent


@dataclass(frozen=True)
class Attention(Compound):
    """Grouped-query attention.

    Attributes:
        q: [hidden] to [heads * head_dim].
        k: [hidden] to [kv_heads * head_dim]; None: keys and values are those of `source`.
        v: [hidden] to [kv_heads * head_dim]; None: values are what `k` gives, before its norm.
        o: [heads * head_dim] to [hidden].
        heads: Number of query heads, a multiple of kv_heads.
        kv_heads: Number of key and value heads.
        head_dim: Size of a head.
        scale: Factor of attention scores.
        q_norm: Applied to queries before RoPE; None: no normalization. It normalizes each head, or
            all heads as one vector if it has their total size, as a `LayerNorm` has.
        k_norm: The same for keys.
        v_norm: Applied to each head's values; None: no normalization.
        norm_after_rope: Whether these two norms, of each head, follow RoPE instead.
        mask: Name of the mask, see `edgespec.bundle.sublayers.Sublayer`.
        rope: Name of the rotation table, see `Decoder.ropes`; empty: no RoPE.
        growth: Name of the table of one pair that turns nothing, by whose cosines queries are
            multiplied, see `Growth`; empty: they are not.
        gated: Whether `q` also gives a gate behind each head's query, by whose sigmoid the head's
            result is multiplied (Qiu et al., 2025).
        softcap: Limit c of scores: masks are added to `c * tanh(score / c)`; None: no limit.
        sinks: Name of the [heads] tensor with a score for each head that takes part in the softmax
            and has no value, so that heads may attend to nothing (Xiao et al., 2024); None: none.
        source: Number of the layer whose keys and values it reads; None: it has its own.
        slopes: For each head, what is taken off scores for each position between query and key
            (ALiBi: Press et al., 2022); empty: nothing is.
        nearness: Name of the [`BUCKETS`, heads] tensor of what is added to scores by the bucket of
            query and key, see `distance_buckets`; None: nothing is.
        inner_norm: Applied to the results of all heads side by side, which `o` reads; None: no
            normalization.
        second_norm: Applied to what `sum_norm` gives with the stream added once more; None: that is
            the new stream, and nothing is added.
    """

    norm: Norm | None
    q: Linear
    k: Linear | None
    v: Linear | None
    o: Linear
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    v_norm: Norm | None = None
    norm_after_rope: bool = False
    post_norm: Norm | None = None
    mask: str = CAUSAL
    rope: str = DEFAULT_ROPE
    gated: bool = False
    softcap: float | None = None
    output_factor: float = 1.0
    sinks: str | None = None
    source: int | None = None
    sum_norm: Norm | None = None
    slopes: tuple[float, ...] = ()
    nearness: str | None = None
    inner_norm: Norm | None = None
    second_norm: Norm | None = None
    growth: str = ""

    @property
    def window(self) -> int | None:
        """Number of positions that it sees, its own included; None: all before it."""
        return window_of(self.mask)

    @property
    def chunked(self) -> bool:
        """Whether it sees those of its chunk alone, which has so many positions."""
        return in_chunks(self.mask)

    @property
    def behind(self) -> int | None:
        """Number of positions behind its own that it sees; None: all of the text."""
        return behind_of(self.mask)

    @property
    def rotated(self) -> int:
        """Number of the first elements of a head that are rotated."""
        return self.head_dim

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        own: Shapes = {} if self.sinks is None else {self.sinks: (self.heads,)}
        if self.nearness is not None:
            own[self.nearness] = BUCKETS, self.heads
        return own | super().tensors()


@dataclass(frozen=True, kw_only=True)
class LatentAttention(Attention):
    """Attention to one latent vector for each position (MLA: DeepSeek-AI, DeepSeek-V2, 2024).

    A head's key is made of the latent by a matrix of its own, and of further numbers, which are
    rotated and the same for all heads; its value is made of the latent by another matrix. Here a
    query becomes one of latents, and what attention gives of latents becomes that of values, so
    that the only head of keys is [rotated part, latent], and values are latents. So `q` gives for
    each head what is not rotated, then what is, and `k` the latent, then what is rotated.

    Attributes:
        q_in: [hidden] to the vector that `q` reads behind a norm; None: `q` reads the input.
        q_in_norm: That norm; None: there is none.
        latent_norm: Applied to latents.
        keys: Of each head, what is not rotated to [latent].
        values: Of each head, [latent] to its value.
    """

    q_in: Linear | None
    q_in_norm: Norm | None
    latent_norm: Norm
    keys: tuple[Linear, ...]
    values: tuple[Linear, ...]

    @property
    def stacks(self) -> tuple[tuple[Linear, ...], ...]:
        """See `Compound`: those of all heads."""
        return self.keys, self.values

    @property
    def rotated(self) -> int:
        """Number of the first elements of a head that are rotated."""
        return self.head_dim - self.latent_norm.size


@dataclass(frozen=True)
class Mlp(Compound):
    """Gated MLP (Shazeer, 2020): `down(activation(gate(x)) * up(x))`.

    Attributes:
        gate: [hidden] to [intermediate].
        up: [hidden] to [intermediate].
        down: [intermediate] to [hidden].
        activation: Activation of the gate.
        cutoff: By so many deviations a gate must exceed the mean of all to count, and what exceeds
            this is activated (Gemma 3n); None: all count.
        inner_norm: Applied to what `down` reads; None: no normalization.
    """

    norm: Norm | None
    gate: Linear
    up: Linear
    down: Linear
    activation: Activation = "silu"
    cutoff: float | None = None
    post_norm: Norm | None = None
    output_factor: float = 1.0
    sum_norm: Norm | None = None
    inner_norm: Norm | None = None


@dataclass(frozen=True)
class PlainMlp(Compound):
    """MLP without a gate: `down(activation(up(x)))`.

    Attributes:
        up: [hidden] to [intermediate].
        down: [intermediate] to [hidden].
        activation: The activation, of the newest models squares (So et al., Primer, 2021).
    """

    norm: Norm | None
    up: Linear
    down: Linear
    post_norm: Norm | None = None
    output_factor: float = 1.0
    activation: PlainActivation | Xielu = "relu2"
    sum_norm: Norm | None = None


@dataclass(frozen=True)
class Moe(Compound):
    """Mixture of experts (Shazeer et al., 2017): of many MLPs, each row is read by a few.

    A row's output is the sum of the outputs of the `top_k` experts that the router scores highest,
    each times its share: the softmax of the scores, or the sigmoid of its score.

    Attributes:
        router: [hidden] to a score for each expert. It is never quantized.
        experts: The experts, alike but for the names of their tensors; they have no norms.
        top_k: Number of experts that a row is read by.
        normalized: Whether a row's shares add up to 1: the softmax is over the chosen experts
            instead of all, and sigmoids are divided by their sum.
        sigmoid: Whether shares are sigmoids.
        least_sum: Added to the sum that shares are divided by, where they are sigmoids or there is
            a choice_bias.
        choice_bias: Name of the [experts] tensor that is added to sigmoids, or to the softmax of
            all, when experts are chosen, and not to shares (Wang et al., 2024); None: none is.
        shares_first: Whether experts read a row times their share, and what they give is added
            as it is (Llama 4, Meta, 2025); then one reads a row.
        reach: Experts are chosen one after the other, and the share of each is the softmax over
            those not chosen before it whose scores are within so much of its own, as a part of
            the larger of both (SparseMixer: Liu et al., 2024); None: all at once.
        router_norm: Applied to the sublayer's input for the router; None: it reads what the
            experts read.
        expert_factors: Name of the [experts] tensor with a factor of each expert's share; None:
            there is none.
        entry: [hidden] to the narrower row that experts read, and give; None: they read the input.
        back: From the sum of what experts give to [hidden], where there is an `entry`.
    """

    norm: Norm | None
    router: Linear
    experts: tuple[Mlp | PlainMlp, ...]
    top_k: int
    normalized: bool
    sigmoid: bool = False
    least_sum: float = 0.0
    choice_bias: str | None = None
    shares_first: bool = False
    reach: float | None = None
    output_factor: float = 1.0
    router_norm: Norm | None = None
    expert_factors: str | None = None
    entry: Linear | None = None
    back: Linear | None = None
    post_norm: Norm | None = None

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The experts' matrices, between those that lead to them and back."""
        own = tuple(linear for expert in self.experts for linear in expert.linears)
        return own if self.entry is None or self.back is None else (self.entry, *own, self.back)

    @property
    def stacks(self) -> tuple[tuple[Linear, ...], ...]:
        """See `Compound`: those of all experts."""
        return tuple(zip(*(expert.linears for expert in self.experts), strict=True))

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        vectors = filter(None, (self.expert_factors, self.choice_bias))
        return super().tensors() | dict.fromkeys(vectors, (len(self.experts),))


@dataclass(frozen=True)
class MlpAndMoe(Compound):
    """An MLP and a mixture of experts beside each other, whose outputs are added.

    Attributes:
        mlp: The MLP, with norms of its own.
        moe: The mixture, with norms of its own.
        norm: Applied to the input of both; None: no normalization.
        share: [hidden] to [1], of which the sigmoid is a factor of the MLP's output; it is never
            quantized. None: there is no such factor.
        post_norm: Applied to the sum; None: no normalization.
    """

    mlp: Mlp | PlainMlp
    moe: Moe
    norm: Norm | None = None
    share: Linear | None = None
    post_norm: Norm | None = None
    output_factor: float = 1.0

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The matrices of both."""
        return self.mlp.linears + self.moe.linears

    @property
    def stacks(self) -> tuple[tuple[Linear, ...], ...]:
        """See `Compound`."""
        return self.moe.stacks


@dataclass(frozen=True)
class Injection(Compound):
    """Adds what a layer's own input, see `LayerInputs`, tells of each row (Gemma 3n, Google, 2025).

    `out(activation(gate(x)) * input)`.

    Attributes:
        gate: [hidden] to [size of the input].
        out: [size of the input] to [hidden].
        activation: Activation of the gate.
    """

    gate: Linear
    out: Linear
    activation: Activation
    norm: Norm | None = None
    post_norm: Norm | None = None
    output_factor: float = 1.0


@dataclass(frozen=True)
class AltUpLayer(Compound):
    """A layer that reads one of several streams, and corrects all (AltUp: Baykal et al., 2023).

    With shares p of the first stream, each stream is predicted to be itself and a mixture of all.
    Attention, with a learned residual of low rank beside it (Laurel: Menghani et al., 2024), and
    an MLP make a row of the first prediction. By what this row differs from it all predictions are
    corrected, with shares q of the row. `injection` adds to all but the first. As in Gemma 3n.

    Attributes:
        left: [hidden] to [rank], of Laurel.
        right: [rank] to [hidden].
        laurel_norm: Applied to the result.
        router_norm: Applied to what `router` reads.
        router: [hidden] to [streams], of which tangents are shares. Not quantized, like the next.
        predict: Shares to [streams * streams], the coefficients of each prediction.
        correct: Shares to [streams], to which 1 is added, the factors of corrections.
        scale: Name of the [hidden] tensor that multiplies what the injection's gate reads; None:
            nothing does.
        streams: Number of streams.
    """

    attention: Attention
    mlp: Mlp
    injection: Injection
    left: Linear
    right: Linear
    laurel_norm: Norm
    router_norm: Norm
    router: Linear
    predict: Linear
    correct: Linear
    scale: str | None
    streams: int
    norm: Norm | None = None
    post_norm: Norm | None = None
    output_factor: float = 1.0

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its matrices."""
        inner = self.attention.linears + self.mlp.linears + self.injection.linears
        return (*inner, self.left, self.right)

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        scale: Shapes = {} if self.scale is None else {self.scale: (self.router.in_features,)}
        return super().tensors() | scale


@dataclass(frozen=True)
class ParallelBlock(Compound):
    """Parts of a layer that read the same row, and are all added to it (GPT-J: Wang, 2021).

    Attributes:
        norm: Applied to the input of all parts, which have no norms of their own.
        parts: The parts, in the order in which they are added.
    """

    norm: Norm
    parts: tuple[Attention | Mlp | PlainMlp | Recurrent, ...]

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The matrices of all parts."""
        return tuple(linear for part in self.parts for linear in part.linears)


FeedForward = Mlp | PlainMlp | Moe | MlpAndMoe
"""What follows attention in a layer: an MLP, or a mixture of experts."""

OneStream = Attention | FeedForward | Injection | Recurrent
"""A part of a layer that reads the residual stream and adds its output to it."""

Sublayer = OneStream | ParallelBlock | AltUpLayer
"""Such a part, several beside each other, or what does so with several streams side by side."""


def inner_parts(sublayer: Sublayer) -> tuple[OneStream, ...]:
    """Returns the parts that a sublayer consists of, or itself."""
    if isinstance(sublayer, ParallelBlock):
        return sublayer.parts
    if isinstance(sublayer, AltUpLayer):
        return sublayer.attention, sublayer.mlp, sublayer.injection
    return (sublayer,)
