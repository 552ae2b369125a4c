"""Streams matrices into a role's file of tiles, each in the format that its numbers have or get."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from edgespec.errors import CheckpointError, ExportError
from edgespec.export.arrays import Bytes
from edgespec.export.formats.checked import check_range, read_finite
from edgespec.export.formats.gguf_tiles import tile_format, tiles_of_gguf
from edgespec.export.formats.rounding import RoundedRows, rounded
from edgespec.export.formats.tile_formats import LANES, TILE_FORMATS, TileFormat
from edgespec.export.formats.tiles import tiles_of_floats, tiles_of_levels
from edgespec.export.graph_builder import DataFile
from edgespec.export.storage import FLOATS, Storage
from edgespec.models import TensorSource
from edgespec.system.machine import default_threads

_cores = cache(default_threads)
_Found = TypeVar("_Found")

# Values of the rows that are read and stored at a time.
_PART_VALUES = 1 << 19
_MOVED_VALUES = 1 << 20  # likewise of rows that are not rounded
_MOST_THREADS = 8
_SCALES = ("d", "dmin", "m")
# Maximum share of a matrix's squared norm in blocks whose scales are too small for half precision.
_FAINT_SHARE = 1e-4


@dataclass(frozen=True)
class FusedMatrix:
    """A matrix in the file of tiles.

    Attributes:
        names: names of the tensors that are stacked along their rows; usually one.
        format: name of the tiles' format.
        rows: its rows, the columns of a product.
        width: its columns.
        offset: offset of the tiles in the file.
        nbytes: their size.
    """

    names: tuple[str, ...]
    format: str
    rows: int
    width: int
    offset: int
    nbytes: int


@dataclass
class TileWeights:
    """Writes tensors as tiles, each once.

    Attributes:
        data: the file of tiles.
        tensors: the checkpoint's tensors.
        storage: the format of each matrix.
        progress: called with the number of weights just written.
        written: the matrices so far, by their names.
        errors: relative RMS error of each matrix so far that is in fewer bits than floats have.
    """

    data: DataFile
    tensors: TensorSource
    storage: Storage
    progress: Callable[[int], None]
    written: dict[str, FusedMatrix] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)

    @property
    def formats(self) -> dict[str, int]:
        """Number of weights in each format."""
        counts = Counter[str]()
        for each in self.written.values():
            counts[each.format] += each.rows * each.width
        return dict(counts)

    def matrix(self, *names: str, exact: bool = False) -> FusedMatrix:
        """Writes a matrix.

        Args:
            names: tensors to stack along their rows, each of a multiple of 16 rows but the last.
            exact: whether it is stored in float32 whatever the precision is.

        Raises:
            CheckpointError: if it contains infinity or NaN.
            ExportError: if a number is beyond half precision and is to be stored in it.
        """
        key = "+".join(names)
        if key not in self.written:
            offset = self.data.begin(1 << 20)
            nbytes = 0
            form = ""
            for name in names:
                own, parts = self._parts(name, exact)
                if form and own != form:
                    raise ValueError(f"{key} has matrices in {form} and in {own}")
                form = own
                for part in parts:
                    self.data.write(part)
                    nbytes += part.nbytes
                self.progress(int(np.prod(self.tensors.shape(name))))
            rows = sum(self.tensors.shape(name)[0] for name in names)
            width = self.tensors.shape(names[0])[1]
            self.written[key] = FusedMatrix(names, form, rows, width, offset, nbytes)
        return self.written[key]

    def _parts(self, name: str, exact: bool) -> tuple[str, Iterator[Bytes]]:
        """Returns the format of a matrix, and its tiles, some at a time."""
        form = "f32" if exact else self.storage.format(name, self.tensors.shape(name)[1])
        if form in FLOATS.values():
            return form, self._floats(name, form)
        if name not in self.storage.kept:
            return form, self._rounded(name, form)
        self.errors[name] = 0.0
        kind = TILE_FORMATS[form]
        encoding = self.tensors.encoding(name)
        if encoding is not None and kind == tile_format(encoding):
            return form, self._encoded(name, kind, encoding)
        return form, self._kept(name, kind)

    def _encoded(self, name: str, kind: TileFormat, encoding: str) -> Iterator[Bytes]:
        def work(bounds: tuple[int, int]) -> Bytes:
            tiles = tiles_of_gguf(encoding, self.tensors.read_encoded(name, *bounds))
            _check_scales(self.tensors, name, tiles.view(kind.layout))
            return tiles

        return _in_order(work, self._bounds(name, _MOVED_VALUES))

    def _kept(self, name: str, kind: TileFormat) -> Iterator[Bytes]:
        blocks = self.tensors.blocks(name)
        middle = 1 << kind.bits - 1
        assert blocks is not None
        shift = np.uint8(middle - (1 << blocks.bits - 1))
        for start, stop in self._bounds(name):
            rows = self.tensors.read_blocks(name, start, stop)
            zeros = None
            if kind.name.endswith("z"):
                usual = np.full(rows.scales.shape, middle, np.uint8)
                zeros = usual if rows.zeros is None else rows.zeros + shift
            levels = np.ascontiguousarray(rows.levels + shift)
            yield tiles_of_levels(levels, rows.scales, zeros, kind.bits, blocks.size)[1]

    def _floats(self, name: str, kind: str) -> Iterator[Bytes]:
        for start, stop in self._bounds(name):
            values = read_finite(self.tensors, name, start, stop)
            if kind == "f16":
                check_range(self.tensors, name, values)
            yield tiles_of_floats(values, kind)

    def _rounded(self, name: str, form: str) -> Iterator[Bytes]:
        """Yields the tiles of rounded rows; sets the matrix's error at the end."""
        rows, width = self.tensors.shape(name)
        held = self.storage.rounded
        importance = None if held is None else held.importance.get(name)

        def work(bounds: tuple[int, int]) -> RoundedRows:
            values = read_finite(self.tensors, name, *bounds)
            check_range(self.tensors, name, values)
            return rounded(form, values, importance)

        error = norm = faint = 0.0
        if held is not None and name in held and held.formats[name] == form:
            parts: Iterable[RoundedRows] = [held[name]]
        else:
            parts = _in_order(work, self._bounds(name))
        for found in parts:
            yield found.tiles
            error += found.squared_error
            norm += found.squared_norm
            faint += found.faint_norm
        if faint > _FAINT_SHARE * norm:
            raise ExportError(
                f"{self.tensors.place(name)}: {name} contains weights of about "
                f"{np.sqrt(norm / (rows * width)):.2g}, too small for scales in half "
                f"precision: export at fp32"
            )
        self.errors[name] = float(np.sqrt(error / norm)) if norm else 0.0

    def _bounds(self, name: str, values: int = _PART_VALUES) -> Iterator[tuple[int, int]]:
        rows, width = self.tensors.shape(name)
        step = max(LANES, values // width // LANES * LANES)
        return ((start, min(start + step, rows)) for start in range(0, rows, step))


def _check_scales(tensors: TensorSource, name: str, stored: npt.NDArray[np.void]) -> None:
    """Checks that scales and minima of a damaged file are none of infinity and NaN."""
    floats = [each for each in _SCALES if each in (stored.dtype.names or ())]
    floats = [each for each in floats if stored.dtype[each].base.kind == "f"]
    if not all(np.isfinite(stored[each]).all() for each in floats):
        raise CheckpointError(
            f"{tensors.place(name)}: {name} has scales that are infinity or NaN: download the "
            "checkpoint again"
        )


def _in_order(
    work: Callable[[tuple[int, int]], _Found], parts: Iterator[tuple[int, int]]
) -> Iterator[_Found]:
    """Calls a function with each part, on a few threads; yields its results in the same order."""
    waiting = deque[Future[_Found]]()
    threads = min(_MOST_THREADS, _cores())
    with ThreadPoolExecutor(threads) as pool:
        for part in parts:
            waiting.append(pool.submit(work, part))
            # Bounds the queue: with a slow disk, the whole matrix would gather in memory.
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
