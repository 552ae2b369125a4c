"""Describes a whole decoder: its layers, and what is before, between and behind them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgespec.models.layers.elements import (
    Compound,
    Linear,
    Norm,
    PlainActivation,
    Shapes,
    union,
)
from edgespec.models.layers.sublayers import (
    Attention,
    OneStream,
    Sublayer,
    inner_parts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.layers.rope import Rope


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


@dataclass(frozen=True)
class LayerInputs(Compound):
    """Each layer's own input of a row, by the row's token (Gemma 3n, Google, 2025).

    `norm(projection(e)) + scale * table[token]`, where e is the token's embedding, scaled as the
    residual stream begins with it. Both parts have the inputs of all layers side by side; the norm
    is of each layer's. EmbeddingGemma 2 has the first part alone.

    Attributes:
        table: Name of the [vocab_size, layers * size] tensor; empty: there is none.
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
        return ({self.table: self.shape} if self.table else {}) | super().tensors()


@dataclass(frozen=True)
class TokenRows(Compound):
    """What becomes of embeddings of tokens before the first layer (BERT: Devlin et al., 2018).

    Attributes:
        positions: Name of the table whose row of a row's place in its text is added; empty: none.
        places: Shape of that table.
        first: The row of the first place.
        segments: Name of the table whose row is added of the part of a pair that a row is of;
            empty: none.
        parts: Shape of that table.
        norm: Applied to the sum; None: no normalization.
    """

    positions: str = ""
    places: tuple[int, int] = (0, 0)
    first: int = 0
    segments: str = ""
    parts: tuple[int, int] = (0, 0)
    norm: Norm | None = None

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        tables = {self.positions: self.places, self.segments: self.parts}
        return {name: shape for name, shape in tables.items() if name} | super().tensors()


@dataclass(frozen=True)
class Dense(Compound):
    """Makes other rows of rows: `activation(linear(x))`.

    Attributes:
        linear: Of a row.
        activation: Activation behind it; None: there is none.
    """

    linear: Linear
    activation: PlainActivation | None = None


@dataclass(frozen=True)
class Scorer(Compound):
    """Makes scores of a row, or of the mean of several: `out(norm(activation(dense(x))))`.

    Attributes:
        out: [hidden] to [scores].
        dense: [hidden] to [hidden]; None: `out` reads the row itself.
        activation: Activation behind `dense`.
        norm: Applied to what it gives; None: no normalization.
        of_mean: Whether it reads the mean of the rows, each of which then has these scores.
    """

    out: Linear
    dense: Linear | None = None
    activation: PlainActivation = "tanh"
    norm: Norm | None = None
    of_mean: bool = False


@dataclass(frozen=True)
class Decoder:
    """A language model: a stack of layers, whose rows see those before them, or all of a text.

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
        token_rows: What becomes of embeddings of tokens before the first layer; None: nothing.
        dense: What is applied one after the other to the rows behind the last norm.
        scorer: What makes scores of the rows behind the last norm, of a model that ranks; else
            None.
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
    token_rows: TokenRows | None = None
    dense: tuple[Dense, ...] = ()
    scorer: Scorer | None = None

    @property
    def width(self) -> int:
        """Size of the rows behind the last norm and what follows it, of which embeddings are."""
        return self.dense[-1].linear.out_features if self.dense else self.hidden_size

    @property
    def both_ways(self) -> bool:
        """Whether rows see rows behind them, so that a text is read in one call."""
        return any(each.behind != 0 for each in self.attentions)

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        """The sublayers of all layers, in the order of their numbers."""
        return tuple(sublayer for layer in self.layers for sublayer in layer)

    @property
    def parts(self) -> tuple[OneStream, ...]:
        """The parts that the sublayers consist of."""
        return tuple(part for each in self.sublayers for part in inner_parts(each))

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The parts that are attentions."""
        return tuple(each for each in self.parts if isinstance(each, Attention))

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
            | ({} if self.token_rows is None else self.token_rows.tensors())
            | ({} if self.layer_inputs is None else self.layer_inputs.tensors())
            | dict.fromkeys(self.layer_factors, (1,))
            | ({} if self.altup is None else self.altup.tensors())
            | union(sublayer.tensors() for sublayer in self.sublayers)
            | self.norm.tensors()
            | self.lm_head.tensors()
            | union(each.tensors() for each in self.dense)
            | ({} if self.scorer is None else self.scorer.tensors())
        )
