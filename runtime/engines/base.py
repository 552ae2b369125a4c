"""The interface that every engine implements. Each engine has a module of its own.

An engine compiles a stage to an `Executable`. The KV cache lies on the executable's device: the
runtime asks for rows to be written and moved, and never accesses them itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Protocol, cast

from edgespec.bundle.caches import CacheGroup
from edgespec.bundle.sublayers import RecurrentShape, Sublayers
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.recurrence import Recurrence
from edgespec.runtime.shapes import Shape, Shapes, kept_rows


@dataclass(frozen=True)
class Result:
    """An output of a stage.

    Attributes:
        name: name of the graph's output.
        dtype: numpy's name of its data type.
        rows: the first dimension: S, the rows of the call, or R, the rows with logits.
        shape: the other dimensions.
    """

    name: str
    dtype: str
    rows: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class CompiledFile:
    """A stage that is already compiled for a device and a shape.

    Attributes:
        device: the device, named as for `export --compile-for`.
        shape: rows and capacity of its calls.
        compiler: name and version of the compiler.
        graph: the file to load.
    """

    device: str
    shape: Shape
    compiler: str
    graph: Path


@dataclass(frozen=True)
class StageFile:
    """A stage on disk, and the layout of its cache.

    Attributes:
        graph: the ONNX file.
        data: the file of its external data.
        borrowed: a file of another role, that the graph reads the embedding from; None: it has its
            own, or none.
        key: unique name of bundle and stage for caches of compiled models; None: not to be cached.
        role: name of the role that the stage belongs to.
        layout: the role's sublayers.
        start: number of its first sublayer.
        stop: number of the sublayer after its last one.
        cache_groups: layers whose keys and values it computes, in the order of its cache.
        block_size: least number of weights that share a scale; 0 if none are quantized.
        results: all outputs except new rows of the cache.
        recurrent: what its recurrent sublayers hold of a text, by their layers.
        compiled: the stage compiled for some devices and shapes.
        several_texts: whether its calls hold rows of several texts.
    """

    graph: Path
    data: Path
    key: str | None
    role: str
    layout: Sublayers
    start: int
    stop: int
    cache_groups: tuple[CacheGroup, ...]
    block_size: int
    results: tuple[Result, ...]
    recurrent: Mapping[int, RecurrentShape] = field(default_factory=dict)
    compiled: tuple[CompiledFile, ...] = ()
    borrowed: Path | None = None
    several_texts: bool = False

    @property
    def whole(self) -> bool:
        """Whether the stage is the only one of its role."""
        return self.start == 0 and all(each.name != "next_hidden" for each in self.results)


@dataclass(frozen=True)
class StageOutputs:
    """The outputs of a call; valid until the next call of the same executable.

    Attributes:
        results: all outputs of the graph except new rows of the cache, by name, on the host.
        new_kv: keys and values of the S new rows of each group of layers, on the executable's
            device, for `Cache.write`; if calls hold several texts, [layers, 2, T, KV, L, hd].
        new_rows: new rows of each recurrent sublayer, [S, width] each, on the host.
        several_texts: whether calls hold several texts.
    """

    results: Mapping[str, Array]
    new_kv: Sequence[object]
    new_rows: Sequence[Array] = ()
    several_texts: bool = False

    def new_kv_of(self, text: int) -> Sequence[object]:
        """Returns the new keys and values of one of the call's texts, for `Cache.write`."""
        if not self.several_texts:
            return self.new_kv
        return [cast(Array, each)[:, :, text] for each in self.new_kv]


class Cache(Protocol):
    """Keys and values of one text, [layers, 2, KV, C, hd] of each group of layers.

    Rows never written are zero. Rows are named by their positions in the text; groups with a window
    keep the last ones only.

    Attributes:
        recurrence: what recurrent sublayers hold; None if there are none.
    """

    recurrence: Recurrence | None

    @property
    def capacity(self) -> int:
        """C, in rows of a group that keeps them all."""

    @property
    def earliest(self) -> int:
        """The smallest length that the text can be cut to, besides 0."""

    def clear(self) -> None:
        """Begins a new text; rows may stay what they are."""

    def grow(self, capacity: int) -> None:
        """Enlarges the cache to `capacity` rows and keeps its content."""

    def write(self, new_kv: Sequence[object], rows: Sequence[int], start: int) -> None:
        """Copies the given rows of a call's `new_kv` to the cache rows from `start` on."""

    def move(self, rows: Sequence[int], start: int) -> None:
        """Copies cache rows, ascending and none below `start`, to the rows from `start` on."""

    def bytes_at(self, capacity: int) -> int:
        """Returns the bytes that it takes with such a capacity."""

    def read(self, length: int, start: int = 0) -> list[Array]:
        """Returns a copy of the first rows on the host.

        Args:
            length: number of rows, 0 or at least `earliest`.
            start: how many of them to leave out, from the first on.

        Returns:
            [layers, 2, KV, rows, hd] of each group; with a window the last rows of these.
        """

    def load(self, rows: Sequence[Array], length: int) -> None:
        """Overwrites the first rows with those that `read` returned; the capacity must suffice.

        The last ones of these suffice if they reach as far back as the windows.
        """


class Executable(Protocol):
    """A compiled stage. It is stateless, so any number of texts can share it."""

    def new_cache(self, capacity: int, most: int) -> Cache:
        """Creates an empty cache on this executable's device.

        Args:
            capacity: number of rows at first.
            most: number of rows that it is expected to grow to, to reserve memory; 0: not known.
        """

    def run(self, feeds: Mapping[str, Array], cache: Cache) -> StageOutputs:
        """Computes one call over S rows.

        Args:
            feeds: all inputs of the stage except its cache, as C-contiguous arrays. They are bound
                once: calls of the same shape pass the same mapping with new values.
            cache: a cache that this executable's `new_cache` returned.
        """


@dataclass(frozen=True)
class StageSizes:
    """The sizes of a stage that its memory depends on; 0 for parts that it does not have.

    Attributes:
        matmul_bytes: bytes of data that matrix products read.
        embedding_bytes: bytes of data that the embedding reads; if `tied`, the products read the
            same bytes.
        file_bytes: bytes of the data file, which all stages of a role share.
        tied: whether the stage has embedding and output projection, and both read the same bytes.
        precision: precision of the weights: int4, int8, fp16 or fp32.
        block_size: least number of weights that share a scale; 0 if none are quantized.
        scale_bytes: bytes of a scale.
        cache_groups: layers whose keys and values it computes.
        hidden: width of the residual stream.
        intermediate: width of the MLP, or of all that a row of a mixture of experts goes through.
        heads: number of query heads.
        recurrent_bytes: bytes that its recurrent sublayers hold of a text.
        vocab: number of logits of a row.
        result_bytes: bytes of a row of results: the logits, or what the graph computes from them.
        passed_bytes: bytes of a row that is passed on to the next stage.
        copies_cache: whether a call copies the caches of all layers, as graphs of other programs
            do.
    """

    matmul_bytes: int
    embedding_bytes: int
    file_bytes: int
    tied: bool
    precision: str
    block_size: int
    scale_bytes: int
    cache_groups: tuple[CacheGroup, ...]
    hidden: int
    intermediate: int
    heads: int
    vocab: int
    result_bytes: int
    passed_bytes: int
    recurrent_bytes: int = 0
    copies_cache: bool = False

    @property
    def layers(self) -> int:
        """Number of layers whose keys and values it computes."""
        return sum(len(group.layers) for group in self.cache_groups if not group.scales)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of keys and values of all layers."""
        return sum(group.row_bytes for group in self.cache_groups)

    def cache_bytes(self, capacity: int) -> int:
        """Returns the bytes of its cache, where layers that keep all rows have `capacity`."""
        return cache_bytes(self.cache_groups, capacity)

    def blocks(self, nbytes: int) -> int:
        """Returns how many blocks of quantized weights this many bytes hold; 0 if not quantized."""
        bits = int(self.precision[3:]) if self.precision.startswith("int") else 0
        return nbytes // (self.block_size * bits // 8 + self.scale_bytes) if bits else 0

    def widening_bytes(self, nbytes: int) -> int:
        """Returns by how many bytes the scales in this many bytes of data grow as float32."""
        return (4 - self.scale_bytes) * self.blocks(nbytes)


@dataclass(frozen=True)
class CallSizes:
    """The sizes of the largest calls of a stage.

    Attributes:
        rows: S, the bucket of rows of the longest call.
        capacity: C, number of rows of the cache.
        logit_rows: R, the bucket of rows with logits.
    """

    rows: int
    capacity: int
    logit_rows: int


@dataclass(frozen=True)
class Footprint:
    """The memory that an engine needs for a stage, in bytes; all but `mapped` is anonymous.

    Attributes:
        weights: memory of the weights as the bundle stores them, or widened.
        repacked: memory of the weights in the engine's own layout.
        mapped: file-backed pages, which the system can reclaim.
        logits: memory of the results, and of rows that are passed on to the next stage.
        workspace: memory of the compiled graph, and of what its operators keep between calls.
        shared: further workspace that the role's stages on this engine share: only the largest
            counts. Its sum with `workspace` must not decrease for larger calls.
        loading: temporary memory while loading, on top of `weights` and `repacked`.
    """

    weights: int
    repacked: int
    mapped: int
    logits: int
    workspace: int
    shared: int
    loading: int


class Engine(Protocol):
    """Compiles stages for one device."""

    @property
    def name(self) -> str:
        """`engine:device`, as users write it."""

    @property
    def hardware(self) -> str:
        """Product name of the device; measurements hold only for the same hardware."""

    @property
    def version(self) -> str:
        """Version of the engine's library; measurements hold only for the same version."""

    @property
    def shapes(self) -> Shapes:
        """Shapes that calls are rounded up to."""

    @property
    def variant(self) -> str | None:
        """Name of the bundle's variant that it runs; None: the role itself."""

    @property
    def keeps_states(self) -> bool:
        """Whether it runs recurrent sublayers."""

    @property
    def integer_caches(self) -> bool:
        """Whether it runs stages that keep keys and values in 8 bits."""

    @property
    def several_texts(self) -> bool:
        """Whether it runs stages whose calls hold several texts, unless shapes are fixed."""

    def compile(self, stage: StageFile, threads: int) -> Executable:
        """Loads and compiles a stage.

        Raises:
            DeviceError: if the engine refuses it.
        """

    @property
    def memory(self) -> str:
        """The memory that it uses: cpu, or gpu, gpu:1 and so on for a device with its own."""

    @property
    def library_bytes(self) -> int:
        """Anonymous memory of the library itself, once per process."""

    def available_bytes(self) -> int:
        """Returns the bytes of that memory that are free for this process."""

    def footprint(self, stage: StageSizes, calls: CallSizes) -> Footprint:
        """Estimates the memory of a stage before it is loaded; larger sizes never give less."""


def cache_bytes(groups: Sequence[CacheGroup], capacity: int) -> int:
    """Returns the bytes of a cache, where layers that keep all rows have `capacity`."""
    return sum(kept_rows(capacity, group.window) * group.row_bytes for group in groups)


Engines = tuple[Engine, ...]
"""The engines that run a role, one for each of its stages."""


def common_shapes(engines: Engines) -> Shapes:
    """Returns the shapes that a role's calls are rounded up to, common to all of its engines.

    Raises:
        InputError: if the engines have no shapes in common.
    """
    return reduce(Shapes.common, (engine.shapes for engine in engines))


def row_count(feeds: Mapping[str, Array]) -> int:
    """Returns S, the number of rows, from the inputs of a call."""
    return len(feeds["hidden" if "hidden" in feeds else "input_ids"])


def joined_names(names: Iterable[str]) -> str:
    """Joins names by `+`, each of them once."""
    return "+".join(dict.fromkeys(names))
