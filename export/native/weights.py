"""Streams matrices into a role's file of tiles, each in the format that its numbers have or get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edgespec.bundle import Precision
from edgespec.errors import CheckpointError
from edgespec.export.components.graph import DataFile
from edgespec.export.formats.blocks import Bytes, QuantizedRows, quantize_rows
from edgespec.export.formats.gguf_tiles import tiles_of_gguf
from edgespec.export.formats.gptq import BITS
from edgespec.export.formats.kept import Form, form_of
from edgespec.export.formats.tiles import (
    BLOCK,
    LANES,
    TILE_FORMATS,
    TileFormat,
    tiles_of_floats,
    tiles_of_levels,
)
from edgespec.export.formats.weights import check_range, read_finite
from edgespec.models import TensorSource

# Values of the rows that are read and stored at a time.
_PART_VALUES = 1 << 17
_FLOATS = {"fp32": "f32", "fp16": "f16"}
_HALVES = ("d", "dmin", "m")


@dataclass(frozen=True)
class Matrix:
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
        precision: formats of the role's matrices.
        as_stored: whether matrices whose encoding tiles can have keep the numbers of their file;
            those of no more bits than asked for keep them anyway.
        rounded: matrices that are already rounded to 4 bits, in blocks of the precision's size.
        head: names of the output projection and the embedding.
    """

    data: DataFile
    tensors: TensorSource
    precision: Precision
    as_stored: bool
    rounded: Mapping[str, QuantizedRows]
    head: Collection[str]
    written: dict[str, Matrix] = field(default_factory=dict)

    @property
    def formats(self) -> dict[str, int]:
        """Number of weights in each format."""
        counts = Counter[str]()
        for each in self.written.values():
            counts[each.format] += each.rows * each.width
        return dict(counts)

    def matrix(self, *names: str, exact: bool = False) -> Matrix:
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
            offset, nbytes, form = self.data.begin(1 << 20), 0, ""
            for name in names:
                own, parts = self._parts(name, exact)
                if form and own != form:
                    raise ValueError(f"{key} has matrices in {form} and in {own}")
                form = own
                for part in parts:
                    self.data.write(part)
                    nbytes += part.nbytes
            rows = sum(self.tensors.shape(name)[0] for name in names)
            width = self.tensors.shape(names[0])[1]
            self.written[key] = Matrix(names, form, rows, width, offset, nbytes)
        return self.written[key]

    def _parts(self, name: str, exact: bool) -> tuple[str, Iterator[Bytes]]:
        """Returns the format of a matrix, and its tiles, some at a time."""
        precision = self.precision.lm_head if name in self.head else self.precision.weights
        if exact:
            return "f32", self._floats(name, "f32")
        encoding = TILE_FORMATS.get(self.tensors.encoding(name) or "")
        few = encoding is not None and encoding.bits <= self._bits(name, precision)
        if encoding is not None and encoding.unit > 1 and (self.as_stored or few):
            return encoding.name, self._encoded(name, encoding)
        form = form_of(self.tensors, name, 8) if name in self.precision.exact else None
        if form is not None:
            if form.block_size % BLOCK or form.scales is np.float32:  # no tiles have such blocks
                return "f32", self._floats(name, "f32")
            kind = f"q{form.bits}_{'z' if form.zero_points else '0'}"
            return kind, self._kept(name, form)
        if precision in _FLOATS:
            return _FLOATS[precision], self._floats(name, _FLOATS[precision])
        bits = self._bits(name, precision)
        return f"q{bits}_0", self._quantized(name, bits)

    def _bits(self, name: str, precision: str) -> int:
        """The bits that a matrix is to have; 0 of floats."""
        if precision in _FLOATS:
            return 0
        return 8 if name in self.precision.wide else int(precision.removeprefix("int"))

    def _encoded(self, name: str, kind: TileFormat) -> Iterator[Bytes]:
        for start, stop in self._bounds(name):
            tiles = tiles_of_gguf(kind.name, self.tensors.read_encoded(name, start, stop))
            _check_scales(self.tensors, name, tiles.view(kind.layout))
            yield tiles

    def _kept(self, name: str, form: Form) -> Iterator[Bytes]:
        blocks, middle = self.tensors.blocks(name), 1 << form.bits - 1
        assert blocks is not None
        shift = np.uint8(middle - (1 << blocks.bits - 1))
        for start, stop in self._bounds(name):
            rows = self.tensors.read_blocks(name, start, stop)
            zeros = None
            if form.zero_points:
                usual = np.full(rows.scales.shape, middle, np.uint8)
                zeros = usual if rows.zeros is None else rows.zeros + shift
            levels = np.ascontiguousarray(rows.levels + shift)
            yield tiles_of_levels(levels, rows.scales, zeros, form.bits, blocks.size)[1]

    def _floats(self, name: str, kind: str) -> Iterator[Bytes]:
        for start, stop in self._bounds(name):
            values = read_finite(self.tensors, name, start, stop)
            if kind == "f16":
                check_range(self.tensors, name, values, np.float16)
            yield tiles_of_floats(values, kind)

    def _quantized(self, name: str, bits: int) -> Iterator[Bytes]:
        size = self.precision.block_size
        width = self.tensors.shape(name)[1]
        ready = self.rounded.get(name) if bits == BITS else None
        for start, stop in self._bounds(name):
            if ready is None:
                values = read_finite(self.tensors, name, start, stop)
                check_range(self.tensors, name, values, np.float16)
                found = quantize_rows(values, bits, size)
                packed, scales = found.packed, found.scales
            else:
                packed, scales = ready.packed[start:stop], ready.scales[start:stop]
            levels = _levels(packed, bits)[:, :width]
            yield tiles_of_levels(np.ascontiguousarray(levels), scales, None, bits, size)[1]

    def _bounds(self, name: str) -> Iterator[tuple[int, int]]:
        rows, width = self.tensors.shape(name)
        step = max(LANES, _PART_VALUES // width // LANES * LANES)
        return ((start, min(start + step, rows)) for start in range(0, rows, step))


def _check_scales(tensors: TensorSource, name: str, stored: npt.NDArray[np.void]) -> None:
    """Checks that scales and minima of a damaged file are none of infinity and NaN."""
    halves = [each for each in _HALVES if each in (stored.dtype.names or ())]
    halves = [each for each in halves if stored.dtype[each].base == np.float16]
    if not all(np.isfinite(stored[each]).all() for each in halves):
        raise CheckpointError(
            f"{tensors.place(name)}: {name} has scales that are infinity or NaN: download the "
            "checkpoint again"
        )


def _levels(packed: Bytes, bits: int) -> npt.NDArray[np.uint8]:
    """Returns the levels of packed blocks, [rows, blocks * block size]."""
    flat = packed.reshape(len(packed), -1)
    if bits == 8:
        return flat
    return np.stack([flat & 15, flat >> 4], axis=-1).reshape(len(flat), -1)
