"""What a bundle's ``manifest.json`` says, as records: roles, their stages, skip sets, files."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from edgespec.bundle.sublayers import DEFAULT_ROPE, Sublayer, Sublayers
from edgespec.system.records import LEFT_OUT

FORMAT = 2
"""Of the manifest; another number means records that are not these."""

NPU = "npu"
"""The name of the variant for NPUs: ONNX's own operators alone, plain numbers for weights."""

W8A8 = "w8a8"
"""A precision of weights: products of integers, weights and activations in 8 bits."""

HALF_BIAS_OFF = -3e4
"""What half precision holds, and far below any score: hides rows from what computes in it."""


@dataclass(frozen=True)
class Tensor:
    """A boundary tensor of a stage; symbolic dimensions (S, C, R) are strings."""

    name: str
    dtype: str
    shape: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """A run of consecutive sublayers in one ONNX file, `start` included and `stop` not.

    They are numbered as in `Role.layout`; behind the last one comes the head (norm and output
    projection). The embedding belongs to the first stage.
    """

    graph: str
    data: str
    start: int
    stop: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def cached(self) -> tuple[int, ...]:
        """The layers whose keys and values it computes, in the order of its cache."""
        names = (tensor.name.split(".") for tensor in self.inputs)
        return tuple(int(parts[1]) for parts in names if parts[0] == "past" and parts[2] == "key")

    @property
    def ordered(self) -> bool:
        """Whether its attention adds up by positions alone (`export/components/attention.py`)."""
        return any(tensor.name == "recent_rows" for tensor in self.inputs)

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The outputs that the host reads: all but the cache's new rows."""
        return tuple(output for output in self.outputs if output.name != "new_kv")


@dataclass(frozen=True)
class Promise:
    """What a skip set promised on one kind of text.

    Attributes:
        agreement: share of the positions at which the draft's choice was the target's.
        chain: drafted tokens of a round at which it promised most.
        tokens_per_second: promised.
    """

    agreement: float
    chain: int
    tokens_per_second: float


@dataclass(frozen=True)
class SkipScore:
    """What a skip set promised where the bundle was made.

    Attributes:
        draft_cost: seconds of a draft's call over those of the whole model's, for one row.
        plain_tokens_per_second: of the same model without drafts, from the same measurement.
        engine: measured on.
        greedy: promised of text that is decoded greedily.
        sampled: promised of text that is sampled, at temperature 0.8.
    """

    draft_cost: float
    plain_tokens_per_second: float
    engine: str
    greedy: Promise
    sampled: Promise

    def promise(self, sampled: bool) -> Promise:
        """Of the text's kind."""
        return self.sampled if sampled else self.greedy

    def speedup(self, sampled: bool) -> float:
        """Over plain decoding; below 1 where that was faster."""
        return self.promise(sampled).tokens_per_second / self.plain_tokens_per_second

    @property
    def pays(self) -> bool:
        """Whether it promised more than plain decoding on any kind of text."""
        return max(self.speedup(False), self.speedup(True)) > 1

    @property
    def tokens_per_second(self) -> float:
        """Of tokens half of which are greedy and half sampled, by which sets are compared."""
        seconds = 1 / self.greedy.tokens_per_second + 1 / self.sampled.tokens_per_second
        return 2 / seconds


@dataclass(frozen=True)
class SkipSet:
    """Sublayers that a draft on the target's own stages leaves out.

    Attributes:
        skipped: their numbers, ascending.
        score: None: never measured.
    """

    skipped: tuple[int, ...]
    score: SkipScore | None = None


@dataclass(frozen=True)
class Precision:
    """What the numbers of a role are stored as.

    Attributes:
        weights: int4, int8, fp16, fp32 or w8a8, which has int8 for the embedding.
        lm_head: of the output projection and the embedding, one of the same. In bundles from before
            an embedding of its own has that of the weights.
        kv: fp16 or fp32, the cache.
        block_size: weights of int4 and int8 that share one scale (0: there are none).
        scales: fp16, or fp32 in bundles from before; of no meaning where nothing is quantized.
        wide: the matrices of the layers that have 8 bits where `weights` says int4, by name.
    """

    weights: str
    lm_head: str
    kv: str
    block_size: int
    scales: str = field(default="fp32", metadata=LEFT_OUT)
    wide: tuple[str, ...] = field(default=(), metadata=LEFT_OUT)


@dataclass(frozen=True)
class RopeTable:
    """By which angles queries and keys of some attentions are turned.

    Attributes:
        name: as `Sublayer.rope` has it.
        inv_freq: [head_dim / 2] radians per position.
        attention_factor: what cosines and sines are multiplied by.
    """

    name: str
    inv_freq: tuple[float, ...]
    attention_factor: float


@dataclass(frozen=True)
class Role:
    """One model of a bundle.

    Attributes:
        inv_freq: of the default rotation table, see `RopeTable`.
        bias_off: what `attention_bias` holds where a row must not look.
        eos_ids: tokens that end a text.
        parameters: how many weights the model has (tied ones once).
        quantization_error: relative RMS error of each quantized tensor.
        attention_factor: of the default rotation table.
        tied: whether the output projection is the embedding: stored once, but for w8a8, which has
            a layout for each. None in bundles from before, of which it is guessed.
        sublayers: all of them, see `layout`; none in bundles from before.
        ropes: rotation tables beside the default one.
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
    quantization_error: dict[str, float]
    attention_factor: float = field(default=1.0, metadata=LEFT_OUT)
    tied: bool | None = field(default=None, metadata=LEFT_OUT)
    sublayers: tuple[Sublayer, ...] = field(default=(), metadata=LEFT_OUT)
    ropes: tuple[RopeTable, ...] = field(default=(), metadata=LEFT_OUT)

    @cached_property
    def layout(self) -> Sublayers:
        """Its sublayers; in bundles that do not say it, layers of an attention and an MLP."""
        return Sublayers(self.sublayers) if self.sublayers else Sublayers.pairs(self.layers)

    @property
    def rope_tables(self) -> tuple[RopeTable, ...]:
        """All rotation tables, the default one first."""
        default = RopeTable(DEFAULT_ROPE, self.inv_freq, self.attention_factor)
        return (default, *self.ropes)

    @property
    def ordered(self) -> bool:
        """Whether all its attention is, see `Stage.ordered`."""
        return all(stage.ordered for stage in self.stages if stage.cached)

    def visible(self, length: int) -> int:
        """Tokens of a text this long that it sees at a time: a draft model may know fewer."""
        return min(length, self.context_length)


@dataclass(frozen=True)
class Compiled:
    """A stage of a variant as one device runs it, so that it starts without being compiled.

    Attributes:
        device: as `export --compile-for` has it, such as qnn:x-elite.
        compiler: name and version of what compiled it.
        stage: its number.
        rows: S of its calls.
        capacity: C of its cache.
        graph: file to load.
        data: files that it refers to.
        source: SHA-256 of the stage's graph and data that it was compiled from.
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
    """A role for devices that its own stages do not suit: other operators, another precision.

    Attributes:
        role: whose.
        name: what it is for, such as npu.
        precision: of its numbers; its weights may be w8a16 or w4a16, too: integers, and
            activations of 16 bits.
        bias_off: what `attention_bias` holds for it where a row must not look.
        stages: cut where the role's own are.
        compiled: stages that some devices need not compile any more.
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
    """Size in bytes and SHA-256 (hex) of one file of the bundle."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Everything the runtime knows about a bundle.

    Attributes:
        skip_sets: of the target, the best first; its stages are cut where one begins or ends.
        variants: of roles, where there are any.
    """

    format: int
    roles: dict[str, Role]
    tokenizer: tuple[str, ...]
    provenance: dict[str, str]
    files: dict[str, FileEntry]
    skip_sets: tuple[SkipSet, ...]
    # Not written where there are none: such manifests are what they were before there were any.
    variants: tuple[Variant, ...] = field(default=(), metadata=LEFT_OUT)
