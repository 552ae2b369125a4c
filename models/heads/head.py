"""Describes a feature-level draft head by names and sizes, as `models.layers` describes a decoder.

EAGLE-3 (Li et al., 2025): a fusion turns the target's hidden rows of some layers into one row. One
decoder layer reads it beside the embedding of the token that follows, and predicts the token after
that. Deeper in a draft, the layer's own output takes the place of the fused row. Multi-token
prediction (MTP: DeepSeek-AI, 2024) has the same form, with the rows that the target's last norm
gives. A block drafter (DFlash: Chen et al., 2026) has several layers, which predict a block of
tokens in one call. An assistant (Gemma 4: Google, 2026) has several layers, which read the target's
own keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.bundle.sublayers import DEFAULT_ROPE
from edgespec.errors import UnsupportedModelError
from edgespec.models.decoder import Decoder
from edgespec.models.elements import Compound, Linear, Norm, Shapes
from edgespec.models.layers import Attention, Mlp, MlpAndMoe, Moe
from edgespec.models.safetensors_folder import SafetensorsFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from edgespec.bundle import PoolShape
    from edgespec.models.fields import Fields
    from edgespec.models.rope import Rope
    from edgespec.models.tensors import TensorSource


@dataclass(frozen=True)
class Fusion(Compound):
    """Turns the features of a position, the tapped rows side by side, into one hidden row.

    Attributes:
        fc: [taps * feature size] to [hidden]; None: the only tap's row is taken as it is.
        norm: applied to all features together; None: no normalization.
        tap_norms: applied to the features of each tap; empty: no normalization.
        output_norm: applied to the result; None: no normalization.
    """

    fc: Linear | None
    norm: Norm | None = None
    tap_norms: tuple[Norm, ...] = ()
    output_norm: Norm | None = None


@dataclass(frozen=True)
class HeadLayer(Compound):
    """The decoder layer of a head, which reads a token's embedding and a hidden row.

    Attributes:
        token_norm: applied to the embedding.
        hidden_norm: applied to the hidden row.
        gate: [2 * hidden] to [hidden], the gate of Dovetail's dynamic gating fusion (Zhang et al.,
            2024), which mixes both rows; None: both are read side by side, as in EAGLE-3.
        norm_before_residual: whether the residual stream begins with the normalized hidden row.
        attention: its input is [2 * hidden], or [hidden] with a gate or an entry.
        mlp: the MLP, or a mixture of experts.
        entry: [2 * hidden] to [hidden]: makes of both rows the one with which the residual stream
            begins, and which attention reads, as in MTP; None: see above.
    """

    token_norm: Norm
    hidden_norm: Norm
    gate: Linear | None
    norm_before_residual: bool
    attention: Attention
    mlp: Mlp | Moe | MlpAndMoe
    entry: Linear | None = None


@dataclass(frozen=True)
class Masks:
    """How a head drafts several tokens in one call (P-EAGLE: parallel EAGLE, 2026).

    Behind the row of the newest token lie rows of a mask token, each of which predicts one more
    token. They read numbers that were learned in place of the target's features.

    Attributes:
        token: id of the mask token.
        rows: number of tokens that it was trained to draft, the first one included.
        features: name of the [1, 1, width] tensor that masks read.
        width: size of the target's features.
    """

    token: int
    rows: int
    features: str
    width: int


@dataclass(frozen=True)
class Head(Compound):
    """A feature-level draft head.

    Attributes:
        architecture: name of its form, eagle3, peagle or mtp.
        taps: layers of the target whose entering hidden rows are its features, ascending; the
            number of layers stands for the rows that enter the target's last norm.
        fusion: makes one row of them.
        embedding: name of its own [vocab_size, hidden] embedding; None: it uses the target's.
        layer: its decoder layer.
        norm: applied before the output projection.
        lm_head: [hidden] to [tokens that it can propose].
        norm_output: whether deeper levels of a draft read the layer's output after `norm`.
        hidden_size: size of its hidden rows.
        vocab_size: number of tokens that it can read.
        context_length: number of positions that it was trained for.
        rope: its rotation table; None: the target's.
        further: attentions and MLPs of the layers behind `layer`, in order, which read its output.
        masks: how it drafts several tokens in one call; None: it drafts level by level.
    """

    architecture: str
    taps: tuple[int, ...]
    fusion: Fusion
    embedding: str | None
    layer: HeadLayer
    norm: Norm
    lm_head: Linear
    norm_output: bool
    hidden_size: int
    vocab_size: int
    context_length: int
    rope: Rope | None
    further: tuple[Attention | Mlp, ...] = ()
    masks: Masks | None = None

    @property
    def mlps(self) -> tuple[Mlp | Moe | MlpAndMoe, ...]:
        """The MLP of each layer."""
        return (self.layer.mlp, *(each for each in self.further if isinstance(each, Mlp)))

    @property
    def depth(self) -> int:
        """Number of its layers."""
        return len(self.mlps)

    @property
    def attention(self) -> Attention:
        """The attention of its first layer."""
        return self.layer.attention

    def tensors(self) -> Shapes:
        """Returns names and shapes of all tensors."""
        shape = self.vocab_size, self.hidden_size
        own: Shapes = {} if self.embedding is None else {self.embedding: shape}
        if self.masks is not None:
            own |= {self.masks.features: (1, 1, self.masks.width)}
        return own | super().tensors()


@dataclass(frozen=True)
class Convolutions(Compound):
    """Convolutions over rows of a block, before and behind a sublayer (DFlash2: Z Lab, 2026).

    The rows that a sublayer reads, and those that it gives, become sums over the row itself and
    those before it in the block, times kernels that depend on what the sublayer would read.

    Attributes:
        base: name of the [2, taps, hidden] tensor, the part of both kernels that depends on
            nothing.
        projection: [hidden] to [2 * taps * groups], what is added to it; neighbours of a group
            share it.
        taps: number of rows that a sum is over.
    """

    base: str
    projection: Linear
    taps: int

    @property
    def groups(self) -> int:
        """Number of groups of neighbours."""
        return self.projection.out_features // (2 * self.taps)

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        shape = 2, self.taps, self.projection.in_features
        return {self.base: shape, **super().tensors()}


@dataclass(frozen=True)
class BlockLayer(Compound):
    """A decoder layer of a block drafter.

    Attributes:
        attention: a row sees keys and values that the layer makes of the fused features of all
            positions before the block, and those of the block's rows.
        mlp: the MLP.
        causal: whether a row sees only the block's rows up to its own; else it sees all of them.
        around_attention: convolutions around the attention; None: there are none.
        around_mlp: likewise around the MLP.
    """

    attention: Attention
    mlp: Mlp
    causal: bool
    around_attention: Convolutions | None = None
    around_mlp: Convolutions | None = None


@dataclass(frozen=True)
class Markov(Compound):
    """What the token before a predicted one adds to its logits (DSpark: DeepSeek-AI, 2026).

    The logit of token t behind token s gets the product of row s of one table and row t of another;
    of DFlash2 each term of it is multiplied by a number that the predicting row gives.

    Attributes:
        previous: the [vocab_size, rank] table of tokens before.
        following: the [tokens that it can propose, rank] table.
        confidence: [hidden + rank] or [hidden] to [1]: of a row, and of the row of `previous` of
            the token before, the logit of how likely the target is to accept what the row predicts;
            None: nothing says so.
        factors: [hidden] to [rank], of a row: the factors of the terms; None: there are none.
        selects: number of likeliest tokens that get such a product, with `factors`; else 0.
    """

    previous: Linear
    following: Linear
    confidence: Linear | None = None
    factors: Linear | None = None
    selects: int = 0

    @property
    def rank(self) -> int:
        """Width of both tables."""
        return self.previous.in_features


@dataclass(frozen=True)
class BlockHead(Compound):
    """A draft head that predicts a block of tokens in one call.

    Its rows are the newest token, which the target has not read, and mask tokens behind it.
    Embedding and, mostly, output projection are the target's.

    Attributes:
        architecture: name of its form, dflash, dflash2 or dspark.
        taps: see `Head`.
        fusion: makes of the features of a position what all layers read of it.
        layers: its decoder layers.
        norm: applied before the output projection.
        lm_head: [hidden] to [tokens that it can propose]; None: the target's.
        size: number of rows of a block.
        mask_token: id of the token of all rows but the first.
        from_anchor: whether a row predicts the token behind its own position, the first row
            included; else the one at its own position, which the first row knows.
        markov: what makes a prediction depend on the token before; None: it doesn't.
        hidden_size: size of its rows, the target's.
        vocab_size: number of the target's tokens.
        context_length: number of positions that it was trained for.
        rope: its rotation table.
    """

    architecture: str
    taps: tuple[int, ...]
    fusion: Fusion
    layers: tuple[BlockLayer, ...]
    norm: Norm
    lm_head: Linear | None
    size: int
    mask_token: int
    from_anchor: bool
    markov: Markov | None
    hidden_size: int
    vocab_size: int
    context_length: int
    rope: Rope

    @property
    def mlps(self) -> tuple[Mlp, ...]:
        """The MLP of each layer."""
        return tuple(each.mlp for each in self.layers)

    @property
    def depth(self) -> int:
        """Number of its layers."""
        return len(self.layers)

    @property
    def attention(self) -> Attention:
        """The attention of its first layer."""
        return self.layers[0].attention


@dataclass(frozen=True)
class Clusters:
    """Tokens in clusters of equal size, of which a row scores only those of the likeliest ones.

    Attributes:
        centroids: [hidden] to [clusters], how likely each is.
        chosen: number of clusters whose tokens are scored.
        ordering: [vocab_size] int64, tokens, cluster after cluster.
    """

    centroids: Linear
    chosen: int
    ordering: NDArray[np.int64]


@dataclass(frozen=True)
class Assistant:
    """A draft head of several layers that has no keys and values: it reads those of its target.

    All of its rows stand at the same position, behind what the target has read, and see all of
    that. A row reads the embedding of a token and, side by side, the row of the target's last norm
    that predicted it; deeper in a draft, what the head itself gave in its place.

    Attributes:
        architecture: name of its form, gemma4_assistant.
        taps: number of the target's layers alone: the rows that enter its last norm.
        decoder: its layers, whose attentions name the target's layer that they read as `source`,
            its last norm and its output projection; of clusters, the projection's rows are in
            their order.
        before: [2 * width of the target] to [hidden].
        after: [hidden] to [width of the target], of what its last norm gives: what deeper rows
            read.
        clusters: which tokens are scored; None: all.
    """

    architecture: str
    taps: tuple[int, ...]
    decoder: Decoder
    before: Linear
    after: Linear
    clusters: Clusters | None

    @property
    def depth(self) -> int:
        """Number of its layers."""
        return len(self.decoder.layers)

    @property
    def attention(self) -> Attention:
        """The attention of its first layer."""
        return self.decoder.attentions[0]

    @property
    def lm_head(self) -> Linear:
        """Its output projection."""
        return self.decoder.lm_head

    @property
    def hidden_size(self) -> int:
        """Size of the rows of its layers."""
        return self.decoder.hidden_size

    @property
    def vocab_size(self) -> int:
        """Number of the target's tokens."""
        return self.decoder.vocab_size

    @property
    def context_length(self) -> int:
        """Number of positions that it was trained for."""
        return self.decoder.context_length

    @property
    def rope(self) -> Rope:
        """The rotation table of its layers with a window; `decoder` has the other one."""
        return self.decoder.ropes[DEFAULT_ROPE]

    def tensors(self) -> Shapes:
        """Returns names and shapes of all tensors."""
        parts = [self.before, self.after]
        if self.clusters is not None:
            parts.append(self.clusters.centroids)
        own: Shapes = {name: shape for part in parts for name, shape in part.tensors().items()}
        return own | self.decoder.tensors()


@dataclass(frozen=True)
class TargetSizes:
    """What a head must agree with.

    Attributes:
        layers: number of the target's layers.
        hidden_size: size of its hidden rows.
        vocab_size: number of rows of its embedding.
        tokens: number of its tokenizer's ids, without padding.
        inv_freq: [head_dim / 2] its rotation, in radians per position; see `Rope`.
        pools: its layers with keys and values of their own.
    """

    layers: int
    hidden_size: int
    vocab_size: int
    tokens: int
    inv_freq: tuple[float, ...]
    pools: tuple[PoolShape, ...] = ()


@dataclass(frozen=True)
class HeadFiles:
    """Where a head of its own lies.

    Attributes:
        path: The folder, or the GGUF file.
        fields: The config.
        gguf: The tensors of a GGUF file; None: they are those of the folder.
    """

    path: Path
    fields: Fields
    gguf: TensorSource | None = None

    def tensors(self, named: Callable[[str], str] = str) -> TensorSource:
        """Returns the tensors, those of a folder under other names."""
        return SafetensorsFolder(self.path, named) if self.gguf is None else self.gguf


@dataclass(frozen=True)
class HeadCheckpoint:
    """A head's description and its weights, which stay on disk until they are read.

    Attributes:
        path: the folder.
        head: the description; every tensor that it names exists in its shape.
        tensors: the weights.
        ids: [tokens that it can propose] int64, the target's id of each output.
    """

    path: Path
    head: Head | BlockHead | Assistant
    tensors: TensorSource
    ids: NDArray[np.int64]


def check_parts(
    tensors: TensorSource, names: Iterable[str], head: str, remedy: str = "use one without it"
) -> None:
    """Refuses tensors that are no part of a head.

    Args:
        tensors: All tensors, for messages.
        names: Those that are none.
        head: What kind of head it is, for messages.
        remedy: What to do about it.

    Raises:
        UnsupportedModelError: There are some.
    """
    for name in sorted(names):
        raise UnsupportedModelError(
            f"{tensors.place(name)}: {name} belongs to no part of {head} that is implemented: "
            f"{remedy}"
        )


def check_agrees(fields: Fields, sizes: Mapping[str, int]) -> None:
    """Checks that fields, where they are given, have the target's values.

    Raises:
        CheckpointError: One has another.
    """
    for name, size in sizes.items():
        if fields.get(name) not in (None, size):
            raise fields.invalid(name, f"must be the target's, {size}: it is another's")
