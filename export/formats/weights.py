"""Streams a checkpoint's tensors into a bundle's data file, and quantizes them on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from edgespec.errors import CheckpointError, ExportError
from edgespec.export.components.graph import DataFile
from edgespec.export.formats.blocks import QuantizedRows, quantize_rows
from edgespec.export.formats.gptq import BITS
from edgespec.export.formats.kept import Form, keep
from edgespec.models import TensorSource

# Values of a tile of rows: as float32 it fits into a core's L2 cache while it is quantized.
_TILE_VALUES = 1 << 18
_THREADS = 2
# Maximum share of a matrix's squared norm in blocks whose scales are too small for half precision.
_FAINT_SHARE = 1e-4

Progress = Callable[[int], None]

Names = tuple[str, ...]
"""Names of tensors that are stacked along their rows to one."""


@dataclass
class WeightStream:
    """Streams tensors of a checkpoint into the data file of one role, a few rows at a time.

    Attributes:
        data: the external data file.
        tensors: the checkpoint's tensors.
        progress: called with the number of weights just written; a tensor that is stored in two
            formats counts once.
        rounded: matrices that are already rounded to 4 bits, with the same block size.
        errors: relative RMS error of each quantized tensor written so far.
    """

    data: DataFile
    tensors: TensorSource
    progress: Progress
    rounded: Mapping[str, QuantizedRows] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    _written: dict[tuple[Names, str], Written] = field(default_factory=dict)
    _counted: set[str] = field(default_factory=set)

    def shape(self, names: Names) -> tuple[int, ...]:
        """Returns the shape of tensors stacked along their rows."""
        shapes = [self.tensors.shape(name) for name in names]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def floats(self, names: Names, dtype: type[np.floating]) -> Written:
        """Writes tensors as floats; a second call for the same tensors returns the same place."""
        key = (names, np.dtype(dtype).name)
        if key not in self._written:
            nbytes = int(np.prod(self.shape(names))) * np.dtype(dtype).itemsize
            offset = self.data.begin(nbytes)
            for name in names:
                count = self._counter(name)
                for tile in self._tiles(name):
                    check_range(self.tensors, name, tile, dtype)
                    self.data.write(tile.astype(dtype))
                    count(tile.size)
            self._written[key] = Written(offset, nbytes, 0, 0)
        return self._written[key]

    def blocks(self, names: Names, bits: int, block_size: int) -> Written:
        """Quantizes [N, K] matrices: writes the packed bytes, then the scales in half precision."""
        key = (names, f"int{bits}/{block_size}")
        if key not in self._written:
            rows, width = self.shape(names)
            blocks = -(-width // block_size)
            nbytes = rows * blocks * block_size * bits // 8
            offset = self.data.begin(nbytes)
            scales = []
            for part in self._parts(names, bits, block_size):
                self.data.write(part.packed)
                scales.append(part.scales)
            self._written[key] = self._with_scales(offset, nbytes, scales)
        return self._written[key]

    def kept(self, names: Names, form: Form) -> Written:
        """Writes [N, K] matrices in the blocks of their file: packed bytes, scales, zero points."""
        key = (names, str(form))
        if key not in self._written:
            rows, width = self.shape(names)
            nbytes = rows * width * form.bits // 8
            offset = self.data.begin(nbytes)
            scales: list[npt.NDArray[np.floating]] = []
            zeros: list[npt.NDArray[np.uint8]] = []
            for name in names:
                blocks, count = self.tensors.blocks(name), self._counter(name)
                assert blocks is not None
                for bounds in self._tile_bounds(name):
                    part = keep(self.tensors.read_blocks(name, *bounds), blocks, form)
                    self.data.write(part.packed)
                    scales.append(part.scales)
                    if part.zeros is not None:
                        zeros.append(part.zeros)
                    count((bounds[1] - bounds[0]) * width)
                self.errors[name] = 0.0
            self._written[key] = self._with_scales(offset, nbytes, scales, zeros)
        return self._written[key]

    def _with_scales(
        self,
        offset: int,
        nbytes: int,
        scales: Sequence[npt.NDArray[np.floating]],
        zeros: Sequence[npt.NDArray[np.uint8]] = (),
    ) -> Written:
        """Writes scales and zero points of a matrix at `offset`; returns the place of all."""
        place = Written(offset, nbytes, *self._appended(scales))
        if not zeros:
            return place
        zero_offset, zero_nbytes = self._appended(zeros)
        return replace(place, zero_offset=zero_offset, zero_nbytes=zero_nbytes)

    def _appended(self, parts: Sequence[npt.NDArray[np.generic]]) -> tuple[int, int]:
        """Writes arrays one behind the other; returns their offset and bytes."""
        together = np.concatenate(parts)
        offset = self.data.begin(together.nbytes)
        self.data.write(together)
        return offset, together.nbytes

    def _parts(self, names: Names, bits: int, block_size: int) -> Iterator[QuantizedRows]:
        """Yields quantized matrices, some rows at a time; sets the error of each at its end."""
        for name in names:
            yield from self._parts_of(name, bits, block_size)

    def _parts_of(self, name: str, bits: int, block_size: int) -> Iterator[QuantizedRows]:
        rows, width = self.tensors.shape(name)
        error = norm = faint = 0.0
        count = self._counter(name)
        ready = bits == BITS and name in self.rounded
        for part in [self.rounded[name]] if ready else self._quantized(name, bits, block_size):
            yield part
            count(len(part.packed) * width)
            error += part.squared_error
            norm += part.squared_norm
            faint += part.faint_norm
        if faint > _FAINT_SHARE * norm:
            raise ExportError(
                f"{self.tensors.place(name)}: {name} contains weights of about "
                f"{np.sqrt(norm / (rows * width)):.2g}, too small for scales in half "
                f"precision: export at fp32"
            )
        self.errors[name] = float(np.sqrt(error / norm)) if norm else 0.0

    def _counter(self, name: str) -> Progress:
        """Returns the function to call with the number of a tensor's weights just written."""
        again = name in self._counted
        self._counted.add(name)
        return (lambda _: None) if again else self.progress

    def _tiles(self, name: str) -> Iterator[npt.NDArray[np.float32]]:
        for start, stop in self._tile_bounds(name):
            yield read_finite(self.tensors, name, start, stop)

    def _tile_bounds(self, name: str) -> Iterator[tuple[int, int]]:
        rows, *rest = self.tensors.shape(name)
        step = max(1, _TILE_VALUES // int(np.prod(rest)))
        return ((start, min(start + step, rows)) for start in range(0, rows, step))

    def _quantized(self, name: str, bits: int, block_size: int) -> Iterator[QuantizedRows]:
        def work(bounds: tuple[int, int]) -> QuantizedRows:
            tile = read_finite(self.tensors, name, *bounds)
            check_range(self.tensors, name, tile, np.float16)
            return quantize_rows(tile, bits, block_size)

        waiting: deque[Future[QuantizedRows]] = deque()
        with ThreadPoolExecutor(_THREADS) as pool:
            for bounds in self._tile_bounds(name):
                waiting.append(pool.submit(work, bounds))
                # Bounds the queue: with a slow disk, the whole matrix would gather in memory.
                if len(waiting) > 2 * _THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()


def read_finite(tensors: TensorSource, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
    """Reads rows of a tensor.

    Raises:
        CheckpointError: if they contain infinity or NaN.
    """
    tile = tensors.read_rows(name, start, stop)
    if not np.isfinite(tile).all():
        raise CheckpointError(
            f"{tensors.place(name)}: {name} contains infinity or NaN in rows {start} to "
            f"{stop - 1}: download the checkpoint again"
        )
    return tile


def check_range(
    tensors: TensorSource, name: str, tile: npt.NDArray[np.float32], dtype: type[np.floating]
) -> None:
    """Checks that all numbers are within the range of a data type.

    Raises:
        ExportError: if a number is out of range.
    """
    largest = float(np.finfo(dtype).max)
    if np.abs(tile).max() > largest:
        raise ExportError(
            f"{tensors.place(name)}: {name} contains {np.abs(tile).max():.6g}, but the largest "
            f"number of half precision is {largest:g}: export at fp32"
        )


@dataclass(frozen=True)
class Written:
    """The place of a tensor in the data file.

    Attributes:
        offset: offset of its data.
        nbytes: bytes of its data.
        scale_offset: offset of its scales; 0 if it is not quantized.
        scale_nbytes: bytes of its scales; 0 if it is not quantized.
        zero_offset: offset of its zero points; 0 if it has none.
        zero_nbytes: bytes of its zero points; 0 if it has none.
    """

    offset: int
    nbytes: int
    scale_offset: int
    scale_nbytes: int
    zero_offset: int = 0
    zero_nbytes: int = 0
