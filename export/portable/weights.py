"""Matrices of tiles in the forms that MatMulNBits and standard operators read.

No number is rounded again: levels only change their places and what they are counted from. Where
blocks have minima, weight = scale * (level - middle) + offset, and the sums of a row's blocks times
the offsets are a product of their own. MatMulNBits would take float zero points instead, but with
them ONNX Runtime's CPU is up to 90 times slower in 4 bits and refuses 8, and WebGPU has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from edgespec.bundle.options import GraphForm
from edgespec.export.arrays import Bytes, Floats
from edgespec.export.formats.tile_formats import LANES, TILE_FORMATS
from edgespec.export.formats.tiles import TileLevels, levels_of_tiles, tile_weights
from edgespec.export.graph_builder import CONTRIB, DataFile, GraphBuilder

FLOAT = TensorProto.FLOAT
_TYPES = {"<f4": FLOAT, "<f2": TensorProto.FLOAT16, "|u1": TensorProto.UINT8}
_PART_VALUES = 1 << 18  # weights that are taken apart at once, within a core's L2 cache


@dataclass(frozen=True)
class TileMatrix:
    """A matrix in the file of tiles.

    Attributes:
        name: its name in the graph.
        format: name of the tiles' format.
        rows: its rows, the columns of a product.
        file: the file of tiles.
        offset: where its tiles begin in the file.
        nbytes: their size.
    """

    name: str
    format: str
    rows: int
    file: Path
    offset: int
    nbytes: int

    @property
    def width(self) -> int:
        """Its columns up to a whole unit."""
        kind = TILE_FORMATS[self.format]
        return self.nbytes // -(-self.rows // LANES) // kind.unit_bytes * kind.unit


@dataclass(frozen=True)
class _Form:
    """How levels are stored.

    Attributes:
        bits: 4 or 8; 0 of floats.
        size: number of columns of a block.
        zeros: whether blocks have zero points.
        offsets: whether blocks have offsets.
    """

    bits: int
    size: int = 0
    zeros: bool = False
    offsets: bool = False


@dataclass(frozen=True)
class _StoredMatrix:
    """Names of a stored matrix: packed levels [N, blocks, bytes], and what belongs to blocks.

    Attributes:
        lookup_scales: the same scales [N, blocks, 1].
    """

    rows: int
    packed: str
    scales: str
    lookup_scales: str
    zeros: str
    offsets: str


class PortableWeights:
    """Stores matrices, each once, and emits products with them and lookups of their rows.

    Args:
        graph: receives the nodes.
        data: file of the graph's own data.
        form: what the graph is made of.
    """

    def __init__(self, graph: GraphBuilder, data: DataFile, form: GraphForm) -> None:
        self._graph = graph
        self._data = data
        self._graph_form = form
        self._tiles = cache(partial(np.memmap, dtype=np.uint8, mode="r"))
        self._blocks: dict[str, _StoredMatrix] = {}
        self._floats: dict[str, tuple[str, bool]] = {}
        self._sums: dict[tuple[str, int], str] = {}

    def linear(
        self,
        x: str,
        matrices: Sequence[TileMatrix],
        width: int,
        bias: str = "",
        fused: bool = False,
    ) -> str:
        """Emits the products of x [S, K] with matrices, side by side: [S, N].

        Args:
            x: the rows.
            matrices: the matrices.
            width: K.
            bias: what is added, [N]; nothing if it is empty.
            fused: whether a product adds the bias itself where it can.
        """
        g = self._graph
        runs = [(form, list(run)) for form, run in groupby(matrices, self._form_of)]
        if fused and len(runs) == 1 and runs[0][0].bits:
            return self._product(x, runs[0][1], runs[0][0], width, bias)
        parts = [self._product(x, run, form, width) for form, run in runs]
        y = parts[0] if len(parts) == 1 else g.op("Concat", *parts, axis=-1)
        return g.op("Add", y, bias) if bias else y

    def rows(self, ids: str, matrix: TileMatrix, width: int) -> str:
        """Emits rows of a matrix by number, [S, width] float32."""
        g = self._graph
        form = self._form_of(matrix)
        if not form.bits:
            name, half = self._float_matrix([matrix], width)
            found = g.op("Gather", name, ids, axis=0)
            return g.op("Cast", found, to=FLOAT) if half else found
        # Zero points of lookups lie otherwise than those of products.
        offsets = form.offsets or form.zeros
        held = self._block_matrix([matrix], _Form(form.bits, form.size, offsets=offsets))
        assert not held.zeros, "a product came before the lookup"
        found = g.op(
            "GatherBlockQuantized",
            held.packed,
            ids,
            held.lookup_scales,
            domain=CONTRIB,
            bits=form.bits,
            block_size=form.size,
            gather_axis=0,
            quantize_axis=2,
        )
        if held.offsets:
            own = g.op("Gather", held.offsets, ids, axis=0)
            found = g.op("Add", found, g.op("Unsqueeze", own, g.ints(2)))
        found = g.op("Reshape", found, g.ints(-1, matrix.width))
        if width == matrix.width:
            return found
        return g.op("Slice", found, g.ints(0), g.ints(width), g.ints(1))

    def _product(
        self, x: str, run: list[TileMatrix], form: _Form, width: int, bias: str = ""
    ) -> str:
        g = self._graph
        if not form.bits:
            name, half = self._float_matrix(run, width)
            name = g.op("Cast", name, to=FLOAT) if half else name  # engines do that once, at load
            return g.op("Gemm", x, name, transB=1)
        held = self._block_matrix(run, form)
        further = [held.zeros, "", bias] if bias else [held.zeros] if held.zeros else []
        y = g.op(
            "MatMulNBits",
            x,
            held.packed,
            held.scales,
            *further,
            domain=CONTRIB,
            K=width,
            N=held.rows,
            bits=form.bits,
            block_size=form.size,
            accuracy_level=self._graph_form.accuracy,
        )
        if not held.offsets:
            return y
        sums = self._block_sums(x, form.size, width)
        return g.op("Gemm", sums, held.offsets, y, transB=1)

    def _block_sums(self, x: str, size: int, width: int) -> str:
        """Emits the sums of a row's blocks, [S, blocks], once for all that need them."""
        g = self._graph
        key = (x, size)
        if key not in self._sums:
            blocks = -(-width // size)
            if missing := blocks * size - width:
                x = g.op("Pad", x, g.ints(0, 0, 0, missing))
            parts = g.op("Reshape", x, g.ints(0, blocks, size))
            self._sums[key] = g.op("ReduceSum", parts, g.ints(2), keepdims=0)
        return self._sums[key]

    def _block_matrix(self, matrices: Sequence[TileMatrix], form: _Form) -> _StoredMatrix:
        """Stores matrices of one form, one below the other."""
        label = _label(matrices)
        if label not in self._blocks:
            self._blocks[label] = self._store_blocks(label, matrices, form)
        return self._blocks[label]

    def _store_blocks(
        self, label: str, matrices: Sequence[TileMatrix], form: _Form
    ) -> _StoredMatrix:
        scales: list[Floats] = []
        zeros: list[Bytes] = []
        offsets: list[Floats] = []
        rows = sum(each.rows for each in matrices)
        shape = rows, matrices[0].width // form.size, form.size * form.bits // 8
        offset = self._data.begin(rows * shape[1] * shape[2])
        for name, tiles, count in self._parts(matrices):
            held = levels_of_tiles(name, tiles, count)
            self._data.write(_packed(_counted(held, form), form.bits))
            scales.append(held.scales)
            if form.zeros:
                zeros.append(_packed(held.zeros, form.bits))
            if form.offsets:
                offsets.append(_offsets(held))
        packed = self._declared(f"{label}.packed", "|u1", shape, offset)
        offset = self._data.begin(4 * rows * shape[1])
        self._data.write(np.concatenate(scales))
        return _StoredMatrix(
            rows,
            packed,
            self._declared(f"{label}.scales", "<f4", shape[:2], offset),
            self._declared(f"{label}.lookup_scales", "<f4", (*shape[:2], 1), offset),
            self._appended(f"{label}.zeros", zeros),
            self._appended(f"{label}.offsets", offsets),
        )

    def _float_matrix(self, matrices: Sequence[TileMatrix], width: int) -> tuple[str, bool]:
        """Stores matrices as floats; returns their name, and whether in half precision."""
        label = _label(matrices)
        if label not in self._floats:
            half = self._graph_form.half
            if half is None:
                half = all(each.format != "f32" for each in matrices) and all(
                    _is_half(part) for part in self._float_parts(matrices, width)
                )
            dtype = "<f2" if half else "<f4"
            shape = sum(each.rows for each in matrices), width
            offset = self._data.begin(shape[0] * shape[1] * np.dtype(dtype).itemsize)
            for part in self._float_parts(matrices, width):
                self._data.write(part.astype(dtype))
            self._floats[label] = self._declared(label, dtype, shape, offset), half
        return self._floats[label]

    def _form_of(self, matrix: TileMatrix) -> _Form:
        return _Form(0) if self._graph_form.half else _form_of(matrix)

    def _float_parts(self, matrices: Sequence[TileMatrix], width: int) -> Iterator[Floats]:
        return (tile_weights(*part, width) for part in self._parts(matrices))

    def _parts(self, matrices: Sequence[TileMatrix]) -> Iterator[tuple[str, Bytes, int]]:
        """Yields formats and tiles, some at a time, and the number of rows in them."""
        for each in matrices:
            kind = TILE_FORMATS[each.format]
            stored = self._tiles(each.file)[each.offset : each.offset + each.nbytes]
            tiles = stored.reshape(kind.shape(each.rows, each.width))
            step = max(1, _PART_VALUES // (LANES * each.width))
            for start in range(0, len(tiles), step):
                count = min(each.rows - start * LANES, step * LANES)
                yield each.format, tiles[start : start + step], count

    def _appended(self, name: str, parts: Sequence[npt.NDArray[np.generic]]) -> str:
        """Stores arrays one below the other; returns no name if there are none."""
        if not parts:
            return ""
        together = np.concatenate(parts)
        offset = self._data.begin(together.nbytes)
        self._data.write(together)
        return self._declared(name, together.dtype.str, together.shape, offset)

    def _declared(self, name: str, dtype: str, shape: Sequence[int], offset: int) -> str:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self._graph.external(name, _TYPES[dtype], shape, offset, nbytes)


def _form_of(matrix: TileMatrix) -> _Form:
    kind = TILE_FORMATS[matrix.format]
    if kind.unit == 1:
        return _Form(0)
    zeros = "z" in (kind.layout.names or ())
    return _Form(8 if kind.bits > 4 or kind.table else 4, kind.scaled, zeros, kind.offset)


def _label(matrices: Sequence[TileMatrix]) -> str:
    return "+".join(each.name for each in matrices)


def _counted(held: TileLevels, form: _Form) -> Bytes:
    """Levels as products count them: from the middle of all that the bits can have."""
    middle = 1 << form.bits - 1
    if form.zeros:
        return held.levels
    zero = 1 << held.bits - 1 if form.offsets else int(held.zeros[0, 0])
    return held.levels if zero == middle else held.levels + np.uint8(middle - zero)


def _offsets(held: TileLevels) -> Floats:
    """What is added to the weights of blocks whose levels are counted from their middle."""
    middle = np.float32(1 << held.bits - 1)
    offsets: Floats = held.scales * (middle - held.zeros.astype(np.float32))
    return offsets if held.minima is None else offsets - held.minima


def _packed(levels: Bytes, bits: int) -> Bytes:
    """Levels of rows, two in a byte where they have 4 bits."""
    if bits == 8:
        return levels
    if levels.shape[1] % 2:
        levels = np.pad(levels, ((0, 0), (0, 1)))
    pairs = np.ascontiguousarray(levels).view("<u2")
    packed: Bytes = (pairs | pairs >> 4).astype(np.uint8)
    return packed


def _is_half(values: Floats) -> bool:
    with np.errstate(over="ignore"):
        return np.array_equal(values.astype(np.float16).astype(np.float32), values)
