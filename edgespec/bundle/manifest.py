"""The records of a bundle's ``manifest.json``: roles, their stages, skip sets and files."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from edgespec.bundle.caches import TEXT_ROWS, CacheGroup, grouped
from edgespec.bundle.sublayers import (
    DEFAULT_ROPE,
    FUSION,
    Sublayer,
    Sublayers,
    is_new_rows,
    window_mask,
)
from edgespec.system.records import LEFT_OUT

FORMAT = 2
"""Version of the manifest format; other versions have other records."""

NPU = "npu"
"""Name of the variant for NPUs, which has only standard ONNX operators and plain weights."""

FEATURES = "features"
"""Output of a target's stage with the hidden rows that a draft head reads, see `Role.taps`."""

TARGET_FEATURES, OWN_FEATURES = "target_features", "own_features"
"""Inputs of a head's native graph: features of the target for the first rows, and the head's own
for the others, which it returns as `FEATURES`."""

LOGITS, LAST_HIDDEN = "logits", "last_hidden"
"""Outputs of a target's last stage: scores of tokens, or of an embedding model the rows behind the
last norm."""

POOLINGS = LAST_TOKEN, MEAN = "last", "mean"
"""How an embedding model makes one row of all: that of the last token, or their mean."""

HALF_BIAS_OFF = -3e4
"""Attention bias that hides a row in half precision: representable, and far below any score."""


@dataclass(frozen=True)
class Tensor:
    """An input or output of a stage; dimensions are strings, such as 64 or the symbols S, C, R."""

    name: str
    dtype: str
    shape: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """Consecutive sublayers in one ONNX file, from `start` up to but not including `stop`.

    Sublayers are numbered as in `Role.layout`; the number after the last one is the head (norm and
    output projection). The embedding belongs to the first stage, in a draft head to the second.

    Attributes:
        borrowed: the target's data file, if a draft head's graph reads the embedding there.
    """

    graph: str
    data: str
    start: int
    stop: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    borrowed: str = field(default="", metadata=LEFT_OUT)

    @cached_property
    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """The layers whose keys and values the stage computes, in the order of its cache."""
        return grouped((tensor.name, tensor.dtype, tensor.shape) for tensor in self.inputs)

    @property
    def attends(self) -> bool:
        """Whether it has attention, and with it a cache."""
        return bool(self.cache_groups)

    @property
    def ordered(self) -> bool:
        """Whether attention sums in an order that depends only on positions.

        See `export/components/attention.py`.
        """
        return any(tensor.name == "recent_rows" for tensor in self.inputs)

    @cached_property
    def several_texts(self) -> bool:
        """Whether a call holds rows of several texts, see `export/components/texts.py`."""
        return any(tensor.name == TEXT_ROWS for tensor in self.inputs)

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The outputs that the host reads: all except the new rows of the cache."""
        return tuple(output for output in self.outputs if not is_new_rows(output.name))


@dataclass(frozen=True)
class Promise:
    """Estimated speed of a skip set on one kind of text.

    Attributes:
        agreement: share of positions at which draft and target choose the same token.
        chain: number of drafted tokens per round with the highest estimate.
        tokens_per_second: estimated speed.
    """

    agreement: float
    chain: int
    tokens_per_second: float


@dataclass(frozen=True)
class SkipScore:
    """Estimated speed of a skip set on the machine that made the bundle.

    Attributes:
        draft_cost: time of a draft call divided by that of a call of the whole model, for one row.
        plain_tokens_per_second: speed of the same model without drafts, from the same measurement.
        engine: engine that was measured.
        greedy: estimate for greedy text.
        sampled: estimate for text sampled at temperature 0.8.
    """

    draft_cost: float
    plain_tokens_per_second: float
    engine: str
    greedy: Promise
    sampled: Promise

    def promise(self, sampled: bool) -> Promise:
        """Returns the estimate for sampled or for greedy text."""
        return self.sampled if sampled else self.greedy

    def speedup(self, sampled: bool) -> float:
        """Returns the estimated speed relative to plain decoding; below 1 means slower."""
        return self.promise(sampled).tokens_per_second / self.plain_tokens_per_second

    @property
    def pays(self) -> bool:
        """Whether the estimate beats plain decoding on at least one kind of text."""
        return max(self.speedup(False), self.speedup(True)) > 1

    @property
    def tokens_per_second(self) -> float:
        """Estimated speed if half of the tokens are greedy and half sampled; ranks skip sets."""
        seconds = 1 / self.greedy.tokens_per_second + 1 / self.sampled.tokens_per_second
        return 2 / seconds


@dataclass(frozen=True)
class SkipSet:
    """Sublayers that a layer-skip draft leaves out of the target.

    Attributes:
        skipped: numbers of the skipped sublayers, ascending.
        score: estimated speed; None if it was never measured.
    """

    skipped: tuple[int, ...]
    score: SkipScore | None = None


@dataclass(frozen=True)
class Kept:
    """Matrices that have the quantized blocks of the checkpoint's file, with no second rounding.

    Attributes:
        part: layers, lm_head or embedding, whatever the matrices belong to; a tied matrix belongs
            to lm_head.
        bits: bits of a weight, 4 or 8.
        block_size: number of weights that share a scale.
        scales: format of the scales, fp16 or fp32.
        zero_points: whether each block has a zero point; else it is 2 ** (bits - 1).
        names: names of the matrices.
    """

    part: str
    bits: int
    block_size: int
    scales: str
    zero_points: bool
    names: tuple[str, ...]


@dataclass(frozen=True)
class Precision:
    """Number formats of a role.

    Attributes:
        weights: int4, int8, fp16 or fp32.
        lm_head: format of the output projection and the embedding, one of the same. In older
            bundles an untied embedding has the format of the weights.
        kv: format of the KV cache: int8, fp16 or fp32.
        block_size: number of int4 or int8 weights that share one scale; 0 if there are none.
        scales: format of the scales, fp16, or fp32 in older bundles; meaningless if nothing is
            quantized.
        wide: names of the layers' matrices that have 8 bits although `weights` is int4.
        kept: matrices that are stored in other blocks, those of the checkpoint's file.
    """

    weights: str
    lm_head: str
    kv: str
    block_size: int
    scales: str = field(default="fp32", metadata=LEFT_OUT)
    wide: tuple[str, ...] = field(default=(), metadata=LEFT_OUT)
    kept: tuple[Kept, ...] = field(default=(), metadata=LEFT_OUT)

    @property
    def exact(self) -> frozenset[str]:
        """Names of the matrices that are `kept`."""
        return frozenset(name for each in self.kept for name in each.names)

    @property
    def smallest_block(self) -> int:
        """The smallest number of weights that share a scale; 0 if none are quantized."""
        return min([self.block_size, *(each.block_size for each in self.kept)])


@dataclass(frozen=True)
class RopeTable:
    """Rotary position embedding (RoPE) of some attention sublayers.

    Attributes:
        name: name that `Sublayer.rope` refers to.
        inv_freq: [head_dim / 2] radians per position; 0 for two dimensions that are neither rotated
            nor scaled.
        attention_factor: factor on cosines and sines.
    """

    name: str
    inv_freq: tuple[float, ...]
    attention_factor: float


@dataclass(frozen=True)
class Embedding:
    """How an embedding model makes a vector of the rows of a text.

    Attributes:
        pooling: one of `POOLINGS`.
        normalized: whether the vector is divided by its length.
        prompts: texts to put before what is embedded, by name, such as query and document.
        default_prompt: name of the prompt that is put there if none is asked for; empty: none is.
    """

    pooling: str
    normalized: bool
    prompts: dict[str, str]
    default_prompt: str = field(default="", metadata=LEFT_OUT)

    def __str__(self) -> str:
        rows = "the last token's row" if self.pooling == LAST_TOKEN else "the mean of all rows"
        prompts = f"; prompts: {', '.join(self.prompts)}" if self.prompts else ""
        return f"{rows}{', normalized' * self.normalized}{prompts}"


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
    """What a recurrent layer of a native graph holds of sequences.

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
    """The graph of a role for CPUs, of operators of our own, see `export/native`.

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
        bias_off: value in `attention_bias` that hides a row from another.
        parameters: number of weights; tied ones count once.
        precision: number formats.
        stages: parts of the model, in the order in which they run.
        quantization_error: relative RMS error of each quantized tensor.
        attention_factor: factor of the default RoPE table.
        tied: whether the output projection is the embedding. Then it is stored once.
        sublayers: all sublayers, see `layout`; empty if another program exported the model.
        ropes: RoPE tables besides the default one.
        output_tokens: number of tokens that the output projection scores; 0: all. A draft head may
            have a vocabulary of its own, and its graph maps outputs to the target's ids.
        taps: layers of the target whose entering hidden rows are a draft head's features,
            ascending; the number of layers stands for the rows that enter the last norm. A target
            returns them, and its head reads them; empty without a head.
        mask_token: id of the token that stands for a token still to come, with which a draft
            predicts several tokens in one call; None: it predicts one.
        tokenizer: file of a draft's own tokenizer; empty: its tokens are the target's.
        trees: whether rows of a call may branch. False for graphs that other programs exported:
            their masks take rows of a call to follow one another.
        layer_inputs: size of each layer's own input of a row, which a table has by token; 0 if
            there is none. Stages pass those of all layers in the columns behind the hidden row.
        stages_of_texts: the stages again, cut at the same places, for calls that hold rows of
            several texts; empty if there are none.
        embedding: how an embedding model makes vectors; None: it makes texts.
        native: the graph for CPUs; None: the model has parts that it cannot have.
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
    bias_off: float
    parameters: int
    precision: Precision
    stages: tuple[Stage, ...]
    tied: bool
    quantization_error: dict[str, float]
    attention_factor: float = field(default=1.0, metadata=LEFT_OUT)
    sublayers: tuple[Sublayer, ...] = field(default=(), metadata=LEFT_OUT)
    ropes: tuple[RopeTable, ...] = field(default=(), metadata=LEFT_OUT)
    output_tokens: int = field(default=0, metadata=LEFT_OUT)
    taps: tuple[int, ...] = field(default=(), metadata=LEFT_OUT)
    mask_token: int | None = field(default=None, metadata=LEFT_OUT)
    tokenizer: str = field(default="", metadata=LEFT_OUT)
    trees: bool = field(default=True, metadata=LEFT_OUT)
    layer_inputs: int = field(default=0, metadata=LEFT_OUT)
    stages_of_texts: tuple[Stage, ...] = field(default=(), metadata=LEFT_OUT)
    embedding: Embedding | None = field(default=None, metadata=LEFT_OUT)
    native: Native | None = field(default=None, metadata=LEFT_OUT)

    @cached_property
    def layout(self) -> Sublayers:
        """All sublayers; of another program's export each layer is an attention and an MLP."""
        return Sublayers(self.sublayers) if self.sublayers else Sublayers.pairs(self.layers)

    @property
    def active_parameters(self) -> int:
        """Number of weights without those of experts that a row does not choose.

        Nor are rows of a table counted that give layers the inputs of other tokens.
        """
        idle = sum((each.experts - each.chosen) * each.width for each in self.layout)
        table = (self.vocab_size - 1) * self.layers * self.layer_inputs
        return self.parameters - 3 * self.hidden_size * idle - table

    @property
    def is_head(self) -> bool:
        """Whether it is a draft head, which reads features of the target besides tokens."""
        return self.layout[0].kind == FUSION

    @property
    def recurrent(self) -> bool:
        """Whether a sublayer carries a state, or rows of its own, from position to position."""
        return any(each.recurrent is not None for each in self.layout)

    @property
    def result(self) -> str:
        """The output with a row for each row that was asked for, of what is no draft."""
        return LOGITS if self.embedding is None else LAST_HIDDEN

    @property
    def rope_tables(self) -> tuple[RopeTable, ...]:
        """All RoPE tables, the default one first."""
        default = RopeTable(DEFAULT_ROPE, self.inv_freq, self.attention_factor)
        return (default, *self.ropes)

    @cached_property
    def ordered(self) -> bool:
        """Whether all stages with attention are `Stage.ordered`."""
        return all(stage.ordered for stage in self.stages if stage.attends)

    @cached_property
    def several_texts(self) -> bool:
        """Whether calls of all stages with attention hold rows of several texts."""
        return all(stage.several_texts for stage in self.stages if stage.attends)

    @property
    def rings(self) -> dict[str, int]:
        """The windows of layers that keep little more than these, by their masks."""
        groups = (group for stage in self.stages for group in stage.cache_groups)
        windows = {group.window for group in groups if group.window is not None}
        return {window_mask(window): window for window in windows}

    def visible(self, length: int) -> int:
        """Returns how many tokens of a text of `length` fit the model's context at a time.

        A draft model may have a shorter context than the target.
        """
        return min(length, self.context_length)


@dataclass(frozen=True)
class Compiled:
    """A stage of a variant, compiled ahead of time for one device.

    Attributes:
        device: device as in `export --compile-for`, such as qnn:x-elite.
        compiler: name and version of the compiler.
        stage: number of the stage.
        rows: number of rows of a call (S).
        capacity: number of rows of the cache (C).
        graph: file to load.
        data: further files that `graph` refers to.
        source: SHA-256 of the stage's graph and data that were compiled.
    """

    device: str
    compiler: str
    stage: int
    rows: int
    capacity: int
    graph: str
    data: tuple[str, ...]
    source: tuple[str, ...]


@dataclass(frozen=True)
class Variant:
    """Another version of a role, with other operators or another precision, for some devices.

    Attributes:
        role: name of the role.
        name: purpose of the variant, such as npu.
        precision: number formats. Weights may also be w8a16 or w4a16: integers, with 16-bit
            activations.
        bias_off: value in `attention_bias` that hides a row from another.
        stages: parts of the model, cut at the same places as the role's own stages.
        compiled: stages compiled ahead of time for some devices.
        quantization_error: relative RMS error of each quantized tensor.
    """

    role: str
    name: str
    precision: Precision
    bias_off: float
    stages: tuple[Stage, ...]
    compiled: tuple[Compiled, ...]
    quantization_error: dict[str, float]


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
        skip_sets: skip sets of the target, the best first. The target's stages are cut where a
            skipped range begins or ends.
        variants: variants of roles.
    """

    format: int
    roles: dict[str, Role]
    tokenizer: tuple[str, ...]
    provenance: dict[str, str]
    files: dict[str, FileEntry]
    skip_sets: tuple[SkipSet, ...]
    # Left out if empty, so that such manifests stay the same as before variants existed.
    variants: tuple[Variant, ...] = field(default=(), metadata=LEFT_OUT)
