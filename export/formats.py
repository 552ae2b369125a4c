"""How weights are stored and multiplied: the layer that every architecture is given.

A `WeightFormat` emits linear layers and embeddings into a graph. Quantization lives here alone;
nothing that composes a model asks for the precision.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from edgespec.errors import CheckpointError, ExportError
from edgespec.export.graph import CONTRIB, DataFile, GraphBuilder
from edgespec.export.quantize import QuantizedRows, quantize_rows
from edgespec.models import Linear, TensorStore

# One tile of float32 rows stays in a core's L2 cache while it is quantized.
_TILE_VALUES = 1 << 18
_THREADS = 2
_SCALE_BYTES = 2
# Of a matrix's squares, in blocks so small that half precision spoils their scales.
_FAINT_SHARE = 1e-4

Progress = Callable[[int], None]

Names = tuple[str, ...]
"""Tensors that lie one below the other, as if they were one."""


@dataclass
class WeightStream:
    """Streams tensors of a checkpoint into the data file of one stage, a few rows at a time.

    Attributes:
        data: the external data file.
        tensors: the checkpoint.
        progress: called with the number of weights just written.
        errors: filled with the relative RMS error of each quantized tensor.
    """

    data: DataFile
    tensors: TensorStore
    progress: Progress
    errors: dict[str, float] = field(default_factory=dict)
    _written: dict[tuple[Names, str], _Written] = field(default_factory=dict)

    def shape(self, names: Names) -> tuple[int, ...]:
        """Of tensors as one, their rows one below the other."""
        shapes = [self.tensors.shape(name) for name in names]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def floats(self, names: Names, dtype: type[np.floating]) -> _Written:
        """Write tensors as they are; a second call for the same bytes returns the first's place."""
        key = (names, np.dtype(dtype).name)
        if key not in self._written:
            nbytes = int(np.prod(self.shape(names))) * np.dtype(dtype).itemsize
            offset = self.data.begin(nbytes)
            for name in names:
                for tile in self._tiles(name):
                    self._check_range(name, tile, dtype)
                    self.data.write(tile.astype(dtype))
                    self.progress(tile.size)
            self._written[key] = _Written(offset, nbytes, 0, 0)
        return self._written[key]

    def blocks(self, names: Names, bits: int, block_size: int) -> _Written:
        """Quantize [N, K] matrices: packed bytes first, then their scales in half precision."""
        key = (names, f"int{bits}/{block_size}")
        if key not in self._written:
            rows, width = self.shape(names)
            blocks = -(-width // block_size)
            nbytes = rows * blocks * block_size * bits // 8
            offset = self.data.begin(nbytes)
            scales = [part for name in names for part in self._packed(name, bits, block_size)]
            scale_offset = self.data.begin(rows * blocks * _SCALE_BYTES)
            self.data.write(np.concatenate(scales))
            self._written[key] = _Written(
                offset, nbytes, scale_offset, rows * blocks * _SCALE_BYTES
            )
        return self._written[key]

    def _packed(self, name: str, bits: int, block_size: int) -> Iterator[npt.NDArray[np.float16]]:
        """Write a matrix's packed bytes, and yield its scales; its error is then known."""
        rows, width = self.tensors.shape(name)
        error = norm = faint = 0.0
        for part in self._quantized(name, bits, block_size):
            self.data.write(part.packed)
            self.progress(len(part.packed) * width)
            error += part.squared_error
            norm += part.squared_norm
            faint += part.faint_norm
            yield part.scales
        if faint > _FAINT_SHARE * norm:
            raise ExportError(
                f"{self.tensors.folder}: {name} holds weights of about "
                f"{np.sqrt(norm / (rows * width)):.2g}, too small for scales in half "
                f"precision: export at fp32"
            )
        self.errors[name] = float(np.sqrt(error / norm)) if norm else 0.0

    def _tiles(self, name: str) -> Iterator[npt.NDArray[np.float32]]:
        for start, stop in self._tile_bounds(name):
            yield self._read(name, start, stop)

    def _read(self, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
        tile = self.tensors.read_rows(name, start, stop)
        if not np.isfinite(tile).all():
            raise CheckpointError(
                f"{self.tensors.folder}: {name} holds infinity or NaN in rows {start} to "
                f"{stop - 1}: download the checkpoint again"
            )
        return tile

    def _check_range(
        self, name: str, tile: npt.NDArray[np.float32], dtype: type[np.floating]
    ) -> None:
        largest = float(np.finfo(dtype).max)
        if np.abs(tile).max(initial=0) > largest:
            raise ExportError(
                f"{self.tensors.folder}: {name} holds {np.abs(tile).max():.6g}, half "
                f"precision ends at {largest:g}: export at fp32"
            )

    def _tile_bounds(self, name: str) -> Iterator[tuple[int, int]]:
        rows, *rest = self.tensors.shape(name)
        step = max(1, _TILE_VALUES // max(1, int(np.prod(rest))))
        return ((start, min(start + step, rows)) for start in range(0, rows, step))

    def _quantized(self, name: str, bits: int, block_size: int) -> Iterator[QuantizedRows]:
        def work(bounds: tuple[int, int]) -> QuantizedRows:
            tile = self._read(name, *bounds)
            self._check_range(name, tile, np.float16)
            return quantize_rows(tile, bits, block_size)

        waiting: deque[Future[QuantizedRows]] = deque()
        with ThreadPoolExecutor(_THREADS) as pool:
            for bounds in self._tile_bounds(name):
                waiting.append(pool.submit(work, bounds))
                # Not further ahead, or a slow disk would gather the whole matrix in memory.
                if len(waiting) > 2 * _THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()


@dataclass(frozen=True)
class _Written:
    """Where a tensor lies in the data file."""

    offset: int
    nbytes: int
    scale_offset: int
    scale_nbytes: int


class WeightFormat(Protocol):
    """A precision: how a matrix is stored, multiplied with and looked up in."""

    def linear(self, graph: GraphBuilder, weights: WeightStream, x: str, *layers: Linear) -> str:
        """[S, K] float32 times the layer's [N, K] weight, transposed: [S, N] float32.

        Of several layers it is one product with all their rows, the results side by side. Either
        all of them have a bias or none.
        """

    def embedding(self, graph: GraphBuilder, weights: WeightStream, ids: str, name: str) -> str:
        """Rows of the [V, D] matrix `name` for [S] int64 ids: [S, D] float32."""


@dataclass(frozen=True)
class BlockFormat:
    """int4 or int8 in blocks along K, for MatMulNBits and GatherBlockQuantized.

    Scales are stored in half precision: int4 in blocks of 32 has 4.5 bits a weight. Products widen
    them; of an embedding, ONNX Runtime gives rows rounded to half precision.
    """

    bits: int
    block_size: int

    def linear(self, graph: GraphBuilder, weights: WeightStream, x: str, *layers: Linear) -> str:
        """See `WeightFormat`."""
        names = tuple(layer.weight for layer in layers)
        rows, width = weights.shape(names)
        shape = (rows, -(-width // self.block_size), self._blob)
        packed, scales = self._declare(graph, weights, names, shape)
        y = graph.op(
            "MatMulNBits",
            x,
            packed,
            graph.op("Cast", scales, to=TensorProto.FLOAT),  # engines do that once, as they load
            domain=CONTRIB,
            K=width,
            N=rows,
            bits=self.bits,
            block_size=self.block_size,
            accuracy_level=4,  # int8 activations on CPUs: the integer dot product is the fast one
        )
        return _add_bias(graph, weights, y, layers)

    def embedding(self, graph: GraphBuilder, weights: WeightStream, ids: str, name: str) -> str:
        """See `WeightFormat`."""
        rows, width = weights.tensors.shape(name)
        if width % self.block_size:
            # GatherBlockQuantized has no padded blocks; such a small matrix stays half precision.
            return FloatFormat(np.float16).embedding(graph, weights, ids, name)
        shape = (rows, width * self.bits // 8)
        packed, scales = self._declare(graph, weights, (name,), shape, suffix="/rows")
        found = graph.op(
            "GatherBlockQuantized",
            packed,
            ids,
            scales,
            domain=CONTRIB,
            bits=self.bits,
            block_size=self.block_size,
            gather_axis=0,
            quantize_axis=1,
        )
        # Not the scales: OpenVINO wants them to be constants here.
        return graph.op("Cast", found, to=TensorProto.FLOAT)

    @property
    def _blob(self) -> int:
        return self.block_size * self.bits // 8

    def _declare(
        self,
        graph: GraphBuilder,
        weights: WeightStream,
        names: Names,
        shape: tuple[int, ...],
        suffix: str = "",
    ) -> tuple[str, str]:
        name, place = _label(names), weights.blocks(names, self.bits, self.block_size)
        packed = graph.external(
            f"{name}.packed{suffix}", TensorProto.UINT8, shape, place.offset, place.nbytes
        )
        scales = graph.external(
            f"{name}.scales{suffix}",
            TensorProto.FLOAT16,
            (shape[0], place.scale_nbytes // _SCALE_BYTES // shape[0]),
            place.scale_offset,
            place.scale_nbytes,
        )
        return packed, scales


@dataclass(frozen=True)
class FloatFormat:
    """fp16 or fp32 as stored; the arithmetic is float32."""

    dtype: type[np.floating]

    def linear(self, graph: GraphBuilder, weights: WeightStream, x: str, *layers: Linear) -> str:
        """See `WeightFormat`."""
        stored = _stored(graph, weights, tuple(layer.weight for layer in layers), self.dtype)
        if self.dtype is not np.float32:
            stored = graph.op("Cast", stored, to=TensorProto.FLOAT)
        return _add_bias(graph, weights, graph.op("Gemm", x, stored, transB=1), layers)

    def embedding(self, graph: GraphBuilder, weights: WeightStream, ids: str, name: str) -> str:
        """See `WeightFormat`."""
        stored = _stored(graph, weights, (name,), self.dtype)
        rows = graph.op("Gather", stored, ids, axis=0)
        return rows if self.dtype is np.float32 else graph.op("Cast", rows, to=TensorProto.FLOAT)


def vector(graph: GraphBuilder, weights: WeightStream, *names: str) -> str:
    """A norm's weight, or biases side by side: always float32."""
    return _stored(graph, weights, names, np.float32)


def _stored(
    graph: GraphBuilder, weights: WeightStream, names: Names, dtype: type[np.floating]
) -> str:
    place = weights.floats(names, dtype)
    kind = TensorProto.FLOAT if dtype is np.float32 else TensorProto.FLOAT16
    return graph.external(_label(names), kind, weights.shape(names), place.offset, place.nbytes)


def _add_bias(graph: GraphBuilder, weights: WeightStream, y: str, layers: Sequence[Linear]) -> str:
    biases = [layer.bias for layer in layers if layer.bias is not None]
    if not biases:
        return y
    assert len(biases) == len(layers)
    return graph.op("Add", y, vector(graph, weights, *biases))


def _label(names: Names) -> str:
    return "+".join(names)
