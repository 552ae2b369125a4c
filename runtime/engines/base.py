"""What an engine must offer. One file per engine implements it; nothing else imports an engine.

An engine compiles a stage to an `Executable`. The KV cache belongs to the executable's device: the
runtime asks for rows to be written and moved, and never touches them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Protocol

from edgespec.bundle.sublayers import Sublayers
from edgespec.runtime.arrays import Array
from edgespec.runtime.shapes import Shape, Shapes


@dataclass(frozen=True)
class Result:
    """An output of a stage.

    Attributes:
        name: of the graph's output.
        dtype: numpy's name of it.
        rows: its first dimension: S, the rows of the call, or R, those whose logits are asked for.
        shape: the other dimensions.
    """

    name: str
    dtype: str
    rows: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class CompiledFile:
    """A stage as a device runs it, so that nothing has to be compiled.

    Attributes:
        device: that it was compiled for, as `export --compile-for` has it.
        shape: of its calls.
        compiler: name and version of what compiled it.
        graph: the file to load.
    """

    device: str
    shape: Shape
    compiler: str
    graph: Path


@dataclass(frozen=True)
class StageFile:
    """One stage on disk and what its cache looks like.

    Attributes:
        graph: the ONNX file.
        data: its external data.
        key: names the bundle and stage in caches of compiled models; None: it must not be kept.
        role: whose stage it is.
        layout: the role's sublayers.
        start: its first sublayer.
        stop: the sublayer behind its last.
        cached: the layers whose keys and values it computes, in the order of its cache.
        cache_shape: [layers, 2, KV, hd] of its keys and values, the capacity left out; no layers
            where it has no attention.
        kv_dtype: float32 or float16.
        block_size: quantized weights that share a scale; 0 where there are none.
        results: each output but `new_kv`.
        compiled: the stage for some devices and shapes.
    """

    graph: Path
    data: Path
    key: str | None
    role: str
    layout: Sublayers
    start: int
    stop: int
    cached: tuple[int, ...]
    cache_shape: tuple[int, int, int, int]
    kv_dtype: str
    block_size: int
    results: tuple[Result, ...]
    compiled: tuple[CompiledFile, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether it is the only stage of its role."""
        return self.start == 0 and all(each.name != "next_hidden" for each in self.results)

    @property
    def past(self) -> tuple[str, ...]:
        """The inputs that are its cache, keys and values of each layer."""
        return tuple(f"past.{n}.{part}" for n in self.cached for part in ("key", "value"))


@dataclass(frozen=True)
class StageOutputs:
    """What a call returned; valid until the next call of the same executable.

    Attributes:
        results: every output of the graph but `new_kv`, by name, on the host.
        new_kv: keys and values of the S new rows, on the executable's device: for `Cache.write`.
            Anything where the stage has no attention.
    """

    results: Mapping[str, Array]
    new_kv: object


class Cache(Protocol):
    """Keys and values of one text, [layers, 2, KV, C, hd], zero where never written."""

    @property
    def capacity(self) -> int:
        """C, in rows."""

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` rows, keeping what is there."""

    def write(self, new_kv: object, rows: Sequence[int], start: int) -> None:
        """Copy these rows of a call's `new_kv` to consecutive rows from `start` on."""

    def move(self, rows: Sequence[int], start: int) -> None:
        """Copy cache rows, ascending and none below `start`, to consecutive rows from there on."""

    @property
    def row_bytes(self) -> int:
        """Of one row, in all layers."""

    def read(self, rows: int) -> Array:
        """A copy of the first rows on the host, [layers, 2, KV, rows, hd]."""

    def load(self, rows: Array) -> None:
        """Make what another cache's `read` gave the first rows; there is room for them."""


class Executable(Protocol):
    """A compiled stage: stateless, so that any number of texts share it."""

    def new_cache(self, capacity: int, most: int) -> Cache:
        """An empty cache on this executable's device.

        Args:
            capacity: rows it has at first.
            most: rows it is expected to grow to, so that room can be set aside; 0: not known.
        """

    def run(self, feeds: Mapping[str, Array], cache: Cache) -> StageOutputs:
        """One call over the S rows that `feeds` describe.

        Args:
            feeds: every input of the stage but the past. Arrays are C-contiguous and are bound
                once: for a call of the same shape the same mapping comes again, filled anew.
            cache: from this executable's `new_cache`.
        """


@dataclass(frozen=True)
class StageSizes:
    """What a stage is made of, as far as its memory depends on it; 0 for what it does not have.

    Attributes:
        matmul_bytes: of its data, what matrix products read.
        embedding_bytes: of its data, what the embedding reads; with `tied` the products read the
            same bytes.
        file_bytes: of the file that its data is in, which a role's stages share.
        tied: the output projection reads the embedding's bytes, and the stage has both.
        precision: of the weights: int4, int8, fp16, fp32 or w8a8.
        block_size: quantized weights that share a scale; 0 where there are none.
        scale_bytes: of that scale.
        layers: whose keys and values it computes.
        hidden: width of the residual stream.
        intermediate: width of the MLP.
        heads: of the queries.
        kv_width: KV heads times their width.
        kv_bytes: of one cached number.
        vocab: logits of a row.
        result_bytes: of a row of results: its logits, or what the graph makes of them.
        passed_bytes: of a row that goes on to the next stage.
    """

    matmul_bytes: int
    embedding_bytes: int
    file_bytes: int
    tied: bool
    precision: str
    block_size: int
    scale_bytes: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_width: int
    kv_bytes: int
    vocab: int
    result_bytes: int
    passed_bytes: int

    def blocks(self, nbytes: int) -> int:
        """How many blocks of quantized weights so many bytes of its data are; 0: they are none."""
        bits = int(self.precision[3:]) if self.precision.startswith("int") else 0
        return nbytes // (self.block_size * bits // 8 + self.scale_bytes) if bits else 0

    def widening_bytes(self, nbytes: int) -> int:
        """What the scales of so many bytes of its data take more as float32."""
        return (4 - self.scale_bytes) * self.blocks(nbytes)


@dataclass(frozen=True)
class CallSizes:
    """The largest calls that a stage gets.

    Attributes:
        rows: S of the longest call, as a bucket.
        capacity: C, rows of the cache.
        logit_rows: R, as a bucket.
    """

    rows: int
    capacity: int
    logit_rows: int


@dataclass(frozen=True)
class Footprint:
    """Memory that an engine takes for a stage, in bytes, anonymous but for `mapped`.

    Attributes:
        weights: in the form the bundle has them, or widened.
        repacked: in the engine's own layout.
        mapped: file-backed pages, which the system can take back.
        logits: results of the calls, and rows that go on to the next stage.
        workspace: the compiled graph, and what its operators keep from call to call.
        shared: more workspace, which a role's other stages here use again: the largest counts.
            Together with `workspace` never less for larger calls.
        loading: taken for a while at load, on top of weights and repacked.
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
        """What the device is, as its maker calls it: measurements hold for one only."""

    @property
    def version(self) -> str:
        """The library's version: measurements hold for one version only."""

    @property
    def shapes(self) -> Shapes:
        """What the shapes of its calls are rounded up to."""

    @property
    def variant(self) -> str | None:
        """The variant of a role that it takes, as a bundle names them; None: the role itself."""

    @property
    def integer_products(self) -> bool:
        """Whether it makes the products of w8a8 as such, not on other processors or as floats."""

    def compile(self, stage: StageFile, threads: int) -> Executable:
        """Load and prepare a stage.

        Raises:
            DeviceError: if the engine refuses it.
        """

    @property
    def memory(self) -> str:
        """Whose memory it takes: cpu, or for a device with its own gpu, gpu:1 and so on."""

    @property
    def library_bytes(self) -> int:
        """Anonymous memory of the library itself, once a process."""

    def available_bytes(self) -> int:
        """What is free in that memory, for this process."""

    def footprint(self, stage: StageSizes, calls: CallSizes) -> Footprint:
        """What a stage takes, known before it is loaded; never less for larger sizes."""


Engines = tuple[Engine, ...]
"""What runs a role: an engine for each of its stages."""


def common_shapes(engines: Engines) -> Shapes:
    """What calls of a role are rounded up to, which all its stages get alike.

    Raises:
        InputError: if engines have no shapes in common.
    """
    return reduce(Shapes.common, (engine.shapes for engine in engines))


def row_count(feeds: Mapping[str, Array]) -> int:
    """S, of the inputs of a call."""
    return len(feeds["hidden" if "hidden" in feeds else "input_ids"])


def joined_names(names: Iterable[str]) -> str:
    """Engines' names as people read them: each once, with `+` between."""
    return "+".join(dict.fromkeys(names))
