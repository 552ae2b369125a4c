"""Describes the layers of a decoder by names and sizes, without weights or computation.

A decoder is a list of layers, and a layer a list of sublayers. Each sublayer names what it needs:
norms, mask, rotation table, activation. `export/native` implements the computation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgespec.bundle.sublayers import CAUSAL, DEFAULT_ROPE, window_of
from edgespec.models.elements import (
    Activation,
    Compound,
    Convolution,
    Linear,
    Norm,
    Shapes,
    union,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.rope import Rope


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
            all heads as one vector if it has their total size.
        k_norm: The same for keys.
        v_norm: Applied to each head's values; None: no normalization.
        norm_after_rope: Whether these two norms, of each head, follow RoPE instead.
        mask: Name of the mask, see `edgespec.bundle.sublayers.Sublayer`.
        rope: Name of the rotation table, see `Decoder.ropes`; empty: no RoPE.
        gated: Whether `q` also gives a gate behind each head's query, by whose sigmoid the head's
            result is multiplied (Qiu et al., 2025).
        softcap: Limit c of scores: masks are added to `c * tanh(score / c)`; None: no limit.
        sinks: Name of the [heads] tensor with a score for each head that takes part in the softmax
            and has no value, so that heads may attend to nothing (Xiao et al., 2024); None: none.
        source: Number of the layer whose keys and values it reads; None: it has its own.
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

    @property
    def window(self) -> int | None:
        """Number of positions that it sees, its own included; None: all before it."""
        return window_of(self.mask)

    @property
    def rotated(self) -> int:
        """Number of the first elements of a head that are rotated."""
        return self.head_dim

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        sinks: Shapes = {} if self.sinks is None else {self.sinks: (self.heads,)}
        return sinks | super().tensors()


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
    def linears(self) -> tuple[Linear, ...]:
        """Its matrices."""
        return super().linears + self.keys + self.values

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
    """

    norm: Norm | None
    gate: Linear
    up: Linear
    down: Linear
    activation: Activation = "silu"
    cutoff: float | None = None
    post_norm: Norm | None = None
    output_factor: float = 1.0


@dataclass(frozen=True)
class PlainMlp(Compound):
    """MLP without a gate: `down(relu(up(x))²)` (So et al., Primer, 2021).

    Attributes:
        up: [hidden] to [intermediate].
        down: [intermediate] to [hidden].
    """

    norm: Norm | None
    up: Linear
    down: Linear
    post_norm: Norm | None = None
    output_factor: float = 1.0


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


@dataclass(frozen=True)
class GatedDelta(Compound):
    """Linear attention by the gated delta rule (Yang et al., 2025), behind a short convolution.

    A head's state S is a [key_size, value_size] matrix. At each position, with key k, query q and
    value v: S is multiplied by exp(decay), then k (rate (v - k S)) is added, and q S is the result.

    Attributes:
        mixed: [hidden] to queries and keys of all key heads and values of all value heads.
        gate: [hidden] to [value heads * value_size]; its SiLU is a factor of the normalized result.
        rate: [hidden] to [value heads]; its sigmoid is the rate.
        decay: [hidden] to [value heads]; a, see `log_decay`.
        convolution: Applied to `mixed`, with a SiLU behind it.
        log_decay: Name of a [value heads] tensor A; the decay is -exp(A) softplus(a + bias).
        decay_bias: Name of the [value heads] tensor with that bias.
        result_norm: Normalizes each head's result.
        out: [value heads * value_size] to [hidden].
        key_heads: Number of query and key heads.
        value_heads: Number of value heads, a multiple of key_heads.
        key_size: Size of a key.
        value_size: Size of a value.
    """

    norm: Norm
    mixed: Linear
    gate: Linear
    rate: Linear
    decay: Linear
    convolution: Convolution
    log_decay: str
    decay_bias: str
    result_norm: Norm
    out: Linear
    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    post_norm: Norm | None = None
    output_factor: float = 1.0

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        heads: Shapes = dict.fromkeys((self.log_decay, self.decay_bias), (self.value_heads,))
        return super().tensors() | heads


@dataclass(frozen=True)
class StateSpace(Compound):
    """State space model (Dao and Gu, Mamba-2, 2024), behind a short convolution.

    A head's state S is a [state_size, head_size] matrix. At each position, with value v, and key k
    and query q of the head's group: S is multiplied by exp(decay * step), then k (step v) is added,
    and q S + skip * v is the result. Results times the SiLU of gates are normalized by group.

    Attributes:
        inner: [hidden] to gates and values of all heads, keys and queries of all groups, and a step
            a of each head, see `log_decay`.
        convolution: Applied to values, keys and queries, with a SiLU behind it.
        log_decay: Name of a [heads] tensor A; the decay is -exp(A), and a step softplus(a + bias).
        step_bias: Name of the [heads] tensor with that bias.
        skip: Name of the [heads] tensor.
        result_norm: Of heads * head_size values, of which those of a group are normalized together.
        out: [heads * head_size] to [hidden].
        groups: Number of groups.
        heads: Number of heads, a multiple of groups.
        head_size: Size of a value.
        state_size: Size of a key.
    """

    norm: Norm
    inner: Linear
    convolution: Convolution
    log_decay: str
    step_bias: str
    skip: str
    result_norm: Norm
    out: Linear
    groups: int
    heads: int
    head_size: int
    state_size: int
    post_norm: Norm | None = None
    output_factor: float = 1.0

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        heads = dict.fromkeys((self.log_decay, self.step_bias, self.skip), (self.heads,))
        return super().tensors() | heads


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
        least_sum: Added to the sum that sigmoids are divided by.
        choice_bias: Name of the [experts] tensor that is added to sigmoids when experts are chosen,
            and not to shares (Wang et al., 2024); None: there is none.
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


Recurrent = ShortConvolution | GatedDelta | StateSpace
"""A sublayer that carries something from position to position besides keys and values."""

OneStream = Attention | Mlp | PlainMlp | Moe | MlpAndMoe | Injection | Recurrent
"""A part of a layer that reads the residual stream and adds its output to it."""

Sublayer = OneStream | AltUpLayer
"""Such a part, or what does so with several streams that lie side by side."""


@dataclass(frozen=True)
class AltUp(Compound):
    """How the streams of `AltUpLayer` begin and end.

    Attributes:
        projections: Of each stream but the first, [hidden] to [hidden], of embeddings; the result
            gets their magnitude.
        unembeddings: Of each but the first, the same at the end, before the mean of all.
    """

    projections: tuple[Linear, ...]
    unembeddings: tuple[Linear, ...]

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its matrices."""
        return self.projections + self.unembeddings


@dataclass(frozen=True)
class LayerInputs(Compound):
    """Each layer's own input of a row, by the row's token (Gemma 3n, Google, 2025).

    `norm(projection(e)) + scale * table[token]`, where e is the token's embedding, scaled as the
    residual stream begins with it. Both parts have the inputs of all layers side by side; the norm
    is of each layer's.

    Attributes:
        table: Name of the [vocab_size, layers * size] tensor.
        shape: That shape.
        scale: Factor of its rows.
        projection: [hidden] to [layers * size].
        norm: Of size `size`.
    """

    table: str
    shape: tuple[int, int]
    scale: float
    projection: Linear
    norm: Norm

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        return {self.table: self.shape, **super().tensors()}


@dataclass(frozen=True)
class Decoder:
    """A decoder-only language model.

    Attributes:
        embedding: Name of the [vocab_size, hidden_size] tensor.
        vocab_size: Number of rows of the embedding; with padding it exceeds the tokenizer's
            vocabulary.
        hidden_size: Size of the residual stream.
        layers: The sublayers of each layer, in order.
        norm: Applied before the output projection.
        lm_head: Output projection, [hidden_size] to [vocab_size]; its weight is `embedding` if
            `tied`.
        tied: Whether embedding and output projection are one tensor.
        ropes: Rotation tables by name; attentions refer to them.
        context_length: Maximum number of positions that the model was trained for.
        embedding_scale: Factor of embedding rows.
        logit_softcap: Limit c of logits, which become `c * tanh(logit / c)`; None: no limit.
        layer_inputs: What `Injection` sublayers read besides the stream; None: there are none.
        layer_factors: Names of the [1] tensors by which the stream is multiplied behind each layer;
            empty: it is not.
        altup: How the stream becomes several, if its layers are `AltUpLayer`; else None.
        embeds: Whether its results are the rows behind the last norm, of which embeddings are made,
            and not scores of tokens. `lm_head` is then never computed.
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
    logit_softcap: float | None = None
    layer_inputs: LayerInputs | None = None
    layer_factors: tuple[str, ...] = ()
    altup: AltUp | None = None
    embeds: bool = False

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        """The sublayers of all layers, in the order of their numbers."""
        return tuple(sublayer for layer in self.layers for sublayer in layer)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The sublayers that are attentions."""
        parts = (
            each.attention if isinstance(each, AltUpLayer) else each for each in self.sublayers
        )
        return tuple(each for each in parts if isinstance(each, Attention))

    @property
    def shared(self) -> dict[int, Attention]:
        """The attentions whose keys and values others read, by the numbers of their layers."""
        sources = {each.source for each in self.attentions}
        return {
            number: each
            for number, layer in enumerate(self.layers)
            for each in replace(self, layers=(layer,)).attentions
            if number in sources
        }

    def tensors(self) -> Shapes:
        """Returns names and shapes of all tensors in order of computation; a tied one once."""
        return (
            {self.embedding: (self.vocab_size, self.hidden_size)}
            | ({} if self.layer_inputs is None else self.layer_inputs.tensors())
            | dict.fromkeys(self.layer_factors, (1,))
            | ({} if self.altup is None else self.altup.tensors())
            | union(sublayer.tensors() for sublayer in self.sublayers)
            | self.norm.tensors()
            | self.lm_head.tensors()
        )
