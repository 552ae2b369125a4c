"""Describes draft heads that predict a block of tokens in one call (DFlash: Chen et al., 2026)."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.models.heads.head import Fusion
from edgespec.models.layers.elements import Compound, Linear, Norm, Shapes
from edgespec.models.layers.rope import Rope
from edgespec.models.layers.sublayers import Attention, Mlp


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
