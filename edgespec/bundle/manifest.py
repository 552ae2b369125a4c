"""The records of a bundle's ``manifest.json``: roles, their graphs and files."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from edgespec.bundle.pictures import Vision
from edgespec.bundle.skips import SkipSet
from edgespec.bundle.sublayers import DEFAULT_ROPE, FUSION, Sublayer, Sublayers
from edgespec.system.records import LEFT_OUT

FORMAT = 3
"""Version of the manifest format; other versions have other records."""

FEATURES = "features"
"""Output of a target with the hidden rows that a draft head reads, see `Role.taps`."""

TARGET_FEATURES, OWN_FEATURES = "target_features", "own_features"
"""Inputs of a head: features of the target for the first rows, and its own for the others, which it
returns as `FEATURES`."""

READS_TARGET = "reads_target"
"""Input of a head's portable graph, whose rows have both features: which read the target's, [S]
bool."""

SIGHT = "sight"
"""Input of a block drafter, see `TreeAttention`: -1 of a row that reads features of the target, and
of a row of a block how many rows of it follow. Of a target whose pictures' rows see each other: how
many rows of its picture follow a row, or 0."""

CHUNKS = "chunks"
"""In names of inputs that say which others rows see: that a row sees those of its chunk alone."""

PLACE, PART = "place", "part"
"""Inputs of a model that reads a text in one call, beside `SIGHT`: the place of each row in its
text, and which text of a pair it is of, 0 or 1."""

RECURRENT_ROWS = 64
"""Most rows of a call of a portable graph with states of recurrent layers."""

LOGITS, LAST_HIDDEN = "logits", "last_hidden"
"""Outputs of a target: scores of tokens or, of a model that ranks, of texts; or of an embedding
model the rows behind the last norm."""

POOLINGS = LAST_TOKEN, MEAN, FIRST_TOKEN = "last", "mean", "first"
"""How an embedding model makes one row of all: that of the last token, their mean, or that of the
first token."""


@dataclass(frozen=True)
class Precision:
    """The number formats that were asked for; `Native.formats` tells what matrices have.

    Attributes:
        weights: int4, int8, fp16 or fp32.
        lm_head: format of the output projection and the embedding, one of the same.
        kv: format of the KV cache: int8, fp16 or fp32.
        block_size: number of int4 or int8 weights that share one scale; 0 if there are none.
    """

    weights: str
    lm_head: str
    kv: str
    block_size: int


@dataclass(frozen=True)
class Growth:
    """What queries grow by with their position, so that attention stays sharp in long texts.

    Nakanishi, Scalable-Softmax Is Superior for Attention, 2025; here in steps.

    Attributes:
        scale: growth by the logarithm of the step.
        span: positions of a step.
        offset: how many positions earlier steps begin.
    """

    scale: float
    span: int
    offset: int

    def factor(self, position: int) -> float:
        """Returns what the query of a position is multiplied by."""
        return 1 + self.scale * math.log1p((position + self.offset) // self.span)

    def factors(self, count: int) -> list[float]:
        """Returns what the queries of so many first positions are multiplied by."""
        found = list[float]()
        while len(found) < count:
            same = self.span - (len(found) + self.offset) % self.span
            found += [self.factor(len(found))] * min(same, count - len(found))
        return found


@dataclass(frozen=True)
class RopeTable:
    """Rotary position embedding (RoPE) of some attention sublayers.

    Attributes:
        name: name that `Sublayer.rope` refers to.
        inv_freq: [head_dim / 2] radians per position; 0 for two dimensions that are neither rotated
            nor scaled.
        attention_factor: factor on cosines and sines.
        growth: what they grow by besides; None: they do not. So a table that turns nothing says
            what queries grow by.
    """

    name: str
    inv_freq: tuple[float, ...]
    attention_factor: float
    growth: Growth | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True)
class Embedding:
    """How an embedding model makes a vector of the rows of a text.

    Attributes:
        pooling: one of `POOLINGS`.
        normalized: whether the vector is divided by its length.
        prompts: texts to put before what is embedded, by name, such as query and document.
        default_prompt: name of the prompt that is put there if none is asked for; empty: none is.
        width: numbers of a vector; 0: as many as of a row, `Role.hidden_size`.
    """

    pooling: str
    normalized: bool
    prompts: dict[str, str]
    default_prompt: str = field(default="", metadata=LEFT_OUT)
    width: int = field(default=0, metadata=LEFT_OUT)

    def __str__(self) -> str:
        rows = "the mean of all rows"
        if self.pooling != MEAN:
            rows = f"the {self.pooling} token's row"
        prompts = f"; prompts: {', '.join(self.prompts)}" if self.prompts else ""
        return f"{rows}{', normalized' * self.normalized}{prompts}"


@dataclass(frozen=True)
class PairMessages:
    """How a chat template writes a query and a document: as messages of roles of these names.

    Attributes:
        opened: whether the text ends with the opening of an answer.
        instruction: what a system says before them, if no other instruction is given; empty: there
            is no such message.
    """

    opened: bool
    instruction: str = field(default="", metadata=LEFT_OUT)


@dataclass(frozen=True)
class Reranking:
    """How a model that ranks scores a text for a query.

    Attributes:
        pooling: one of `POOLINGS`: the row of which its graph makes scores, or all of a text, of
            whose scores the mean counts. Then a pass is of one text, since a graph may score the
            mean of its rows, which each has then. One score is how well the text answers the query,
            of two the second is how badly.
        template: what is read, with `{query}` and `{document}` in places of theirs; empty: the pair
            that the tokenizer makes of both.
        messages: how the chat template writes both instead; None: it does not.
    """

    pooling: str
    template: str = field(default="", metadata=LEFT_OUT)
    messages: PairMessages | None = field(default=None, metadata=LEFT_OUT)

    def __str__(self) -> str:
        if self.pooling == MEAN:
            return "scores of the mean of all rows"
        return f"scores of the {self.pooling} token's row"


@dataclass(frozen=True)
class Block:
    """How a draft head predicts a block of tokens in one call.

    Attributes:
        rows: number of a block's rows: the newest token and masks.
        from_anchor: whether each row predicts the token behind its own; else the masks' rows
            predict the tokens in their own places.
        pairs: file of what the token before adds to logits, `.npy`: [vocab_size + outputs + 1,
            rank], rows of tokens before, of those that follow, and the weights of confidence; empty
            if there is none.
        selects: among how many of a position's likeliest tokens the token before decides, and then
            `features` of rows are factors of each term of the products; 0: they are how far a
            position can be trusted.
        features: file of what masks read in place of the target's features, `.npy`: [F] float32.
            Then the newest token's row reads features, as those before it do, and each row sees
            those before it alone; empty: the block's rows read none, and see each other.
    """

    rows: int
    from_anchor: bool = field(default=False, metadata=LEFT_OUT)
    pairs: str = field(default="", metadata=LEFT_OUT)
    selects: int = field(default=0, metadata=LEFT_OUT)
    features: str = field(default="", metadata=LEFT_OUT)


@dataclass(frozen=True)
class PoolShape:
    """Keys and values that an attention layer keeps: [2, kv_heads, slots, dim].

    Attributes:
        layer: number of the layer.
        kv_heads: number of key and value heads.
        dim: width of a head, rounded up to a multiple of 16.
        window: positions that the layer sees, its own included; None: all before it.
    """

    layer: int
    kv_heads: int
    dim: int
    window: int | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True)
class StateShape:
    """What a recurrent layer holds of sequences.

    Attributes:
        layer: number of the layer.
        width: numbers of a row, which are kept for the last rows of a sequence.
        before: how many rows before a row the layer's convolution reads.
        state: [value heads, strips of 16 columns, key size, 16]; empty if it has no state.
    """

    layer: int
    width: int
    before: int
    state: tuple[int, ...] = field(default=(), metadata=LEFT_OUT)


@dataclass(frozen=True)
class Native:
    """The graph of a role, of operators of our own, see `export/native`.

    Or a graph that another program exported, which the host's pools serve as well.

    Attributes:
        graph: its file.
        data: file of its weights, in tiles.
        pools: what each layer with keys and values of its own keeps.
        ropes: names of the RoPE tables in use.
        formats: number of weights in each format of tiles, by the format's name.
        recurrent: what each recurrent layer holds.
        ids: file of the tokens that a draft's logits stand for, int32; empty: their own numbers.
        adopted: whether another program exported it, with past and present; see `export/adopted`.
    """

    graph: str
    data: str
    pools: tuple[PoolShape, ...]
    ropes: tuple[str, ...]
    formats: dict[str, int]
    recurrent: tuple[StateShape, ...] = field(default=(), metadata=LEFT_OUT)
    ids: str = field(default="", metadata=LEFT_OUT)
    adopted: bool = field(default=False, metadata=LEFT_OUT)


@dataclass(frozen=True)
class Role:
    """One model of a bundle.

    Attributes:
        architecture: name of the model architecture.
        layers: number of layers.
        hidden_size: width of the hidden states.
        heads: number of attention heads.
        kv_heads: number of key and value heads.
        head_dim: width of a head.
        vocab_size: number of tokens in the vocabulary.
        context_length: longest supported text in tokens.
        inv_freq: frequencies of the default RoPE table, see `RopeTable`.
        eos_ids: tokens that end a text.
        parameters: number of weights; tied ones count once.
        precision: number formats.
        native: the graph, and what it keeps of sequences.
        quantization_error: relative RMS error of each quantized tensor.
        attention_factor: factor of the default RoPE table.
        tied: whether the output projection is the embedding. Then it is stored once.
        sublayers: all sublayers, see `layout`.
        ropes: RoPE tables besides the default one.
        output_tokens: number of tokens that the output projection scores; 0: all. A draft head may
            have a vocabulary of its own, and its graph maps outputs to the target's ids.
        taps: layers of the target whose entering hidden rows are a draft head's features,
            ascending; the number of layers stands for the rows that enter the last norm. A target
            returns them, and its head reads them; empty without a head.
        mask_token: id of the token that stands for a token still to come, with which a draft
            predicts several tokens in one call; None: it predicts one.
        block: how a draft head predicts a block, whose masks are `mask_token`; None: it doesn't.
        tokenizer: file of a draft's own tokenizer; empty: its tokens are the target's.
        layer_inputs: size of each layer's own input of a row, which a table has by token; 0 if
            there is none.
        embedding: how an embedding model makes vectors; None: it makes texts.
        vision: what makes rows of pictures; None: it reads texts alone.
        both_ways: whether the rows of a text see each other, so that it is read in one call.
        ranking: how a model scores a text for a query; None: it makes texts or vectors.
    """

    architecture: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    inv_freq: tuple[float, ...]
    eos_ids: tuple[int, ...]
    parameters: int
    precision: Precision
    native: Native
    tied: bool
    quantization_error: dict[str, float]
    sublayers: tuple[Sublayer, ...]
    attention_factor: float = field(default=1.0, metadata=LEFT_OUT)
    ropes: tuple[RopeTable, ...] = field(default=(), metadata=LEFT_OUT)
    output_tokens: int = field(default=0, metadata=LEFT_OUT)
    taps: tuple[int, ...] = field(default=(), metadata=LEFT_OUT)
    mask_token: int | None = field(default=None, metadata=LEFT_OUT)
    block: Block | None = field(default=None, metadata=LEFT_OUT)
    tokenizer: str = field(default="", metadata=LEFT_OUT)
    layer_inputs: int = field(default=0, metadata=LEFT_OUT)
    embedding: Embedding | None = field(default=None, metadata=LEFT_OUT)
    vision: Vision | None = field(default=None, metadata=LEFT_OUT)
    both_ways: bool = field(default=False, metadata=LEFT_OUT)
    ranking: Reranking | None = field(default=None, metadata=LEFT_OUT)

    @property
    def writes(self) -> bool:
        """Whether it makes texts, and no vectors or scores of texts."""
        return self.embedding is None and self.ranking is None

    @cached_property
    def layout(self) -> Sublayers:
        """All sublayers, by number and by the names that users write."""
        return Sublayers(self.sublayers)

    @property
    def vector_size(self) -> int:
        """Numbers of a vector that it makes of a text, or of a row."""
        return (self.embedding.width if self.embedding else 0) or self.hidden_size

    @property
    def active_parameters(self) -> int:
        """Number of weights without those of experts that a row does not choose.

        Nor are rows of a table counted that give layers the inputs of other tokens.
        """
        idle = sum((each.experts - each.chosen) * each.weights for each in self.layout)
        table = (self.vocab_size - 1) * self.layers * self.layer_inputs
        return self.parameters - idle - table

    @property
    def is_head(self) -> bool:
        """Whether it is a draft head, which reads features of the target besides tokens."""
        return self.layout[0].kind == FUSION

    @property
    def attends_target(self) -> bool:
        """Whether it is a draft head that has no keys and values, and reads its target's."""
        return self.is_head and not self.native.pools

    @property
    def recurrent(self) -> bool:
        """Whether a sublayer carries a state, or rows of its own, from position to position."""
        return bool(self.native.recurrent)

    @property
    def rope_tables(self) -> tuple[RopeTable, ...]:
        """All RoPE tables, the default one first."""
        default = RopeTable(DEFAULT_ROPE, self.inv_freq, self.attention_factor)
        return (default, *self.ropes)


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and SHA-256 (hex) of one file in the bundle."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Everything the runtime knows about a bundle.

    Attributes:
        format: version of the manifest format.
        roles: models by role.
        tokenizer: names of the tokenizer's files.
        provenance: origin of the bundle, as free text by key.
        files: sizes and hashes of all files.
        skip_sets: skip sets of the target, the best first.
        sampling: how the target's authors ask for tokens to be chosen, by names of options;
            temperature 0 is greedy. None: they say nothing.
    """

    format: int
    roles: dict[str, Role]
    tokenizer: tuple[str, ...]
    provenance: dict[str, str]
    files: dict[str, FileEntry]
    skip_sets: tuple[SkipSet, ...]
    sampling: dict[str, float] | None = field(default=None, metadata=LEFT_OUT)
