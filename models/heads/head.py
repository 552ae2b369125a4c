"""Describes a feature-level draft head by names and sizes, as `models.layers` describes a decoder.

EAGLE-3 (Li et al., 2025): a fusion turns the target's hidden rows of some layers into one row. One
decoder layer reads it beside the embedding of the token that follows, and predicts the token after
that. Deeper in a draft, the layer's own output takes the place of the fused row. Multi-token
prediction (MTP: DeepSeek-AI, 2024) has the same form, with the rows that the target's last norm
gives. `block_head` and `assistant` describe heads of several layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.models.layers.elements import Compound, Linear, Norm, Shapes
from edgespec.models.layers.sublayers import Attention, FeedForward, Mlp

if TYPE_CHECKING:
    from edgespec.models.layers.rope import Rope


@dataclass(frozen=True)
class Fusion(Compound):
    """Turns the features of a position, the tapped rows side by side, into one hidden row.

    Attributes:
        fc: [taps * feature size] to [hidden]; None: the only tap's row is taken, behind the
            target's last norm.
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
    mlp: FeedForward
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
        lm_head: [hidden] to [tokens that it can propose]; None: the target's.
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
    lm_head: Linear | None
    norm_output: bool
    hidden_size: int
    vocab_size: int
    context_length: int
    rope: Rope | None
    further: tuple[Attention | Mlp, ...] = ()
    masks: Masks | None = None

    @property
    def mlps(self) -> tuple[FeedForward, ...]:
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
