"""The graph of a bundle's target, and the matrices that a head takes from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from edgespec.bundle import LOGITS, Bundle
from edgespec.errors import InputError
from edgespec.export.exporter import check_drafted
from edgespec.export.formats.tile_formats import LANES, TILE_FORMATS
from edgespec.export.formats.tiles import tile_weights
from edgespec.export.graph_builder import entering
from edgespec.export.heads.identity import final_norm
from edgespec.export.heads.taps import require_names
from edgespec.export.portable.lowering import attributes
from edgespec.runtime.arrays import Floats

Ids = Sequence[int] | npt.NDArray[np.integer]


@dataclass(frozen=True)
class MatrixTiles:
    """A matrix [N, K] in a bundle's file of tiles.

    Attributes:
        name: its name in the graph.
        tiles: [ceil(N / 16), units, bytes of a unit] uint8.
        format: name of their format.
        width: K, the number of columns.
        factor: what rows are multiplied by.
    """

    name: str
    tiles: npt.NDArray[np.uint8]
    format: str
    width: int
    factor: float = 1.0

    def rows(self, ids: Ids) -> Floats:
        """Returns rows as operators compute with them, [n, K] float32."""
        chosen = np.asarray(ids)
        tiles, places = np.unique(chosen // LANES, return_inverse=True)
        found = tile_weights(self.format, self.tiles[tiles], LANES * len(tiles), self.width)
        rows: Floats = found[places * LANES + chosen % LANES] * np.float32(self.factor)
        return rows

    def part(self, start: int, stop: int) -> Floats:
        """Returns rows from `start` on, a multiple of 16, [stop - start, K] float32."""
        tiles = self.tiles[start // LANES : -(-stop // LANES)]
        rows: Floats = tile_weights(self.format, tiles, stop - start, self.width)
        return rows * np.float32(self.factor)


class TargetGraph:
    """The graph of a bundle's target.

    Args:
        bundle: the bundle.

    Attributes:
        graph: the graph.
        path: its file.
        constants: small tensors that it holds, by name.

    Raises:
        ExportError: if an older version exported it.
        InputError: if another program exported it, or it writes no texts.
    """

    def __init__(self, bundle: Bundle) -> None:
        check_drafted(bundle.target)
        native = bundle.target.native
        if native.adopted:
            raise InputError(f"{bundle.path}: training needs a target that edgespec exported")
        self.path = bundle.path / native.graph
        self._data = bundle.path / native.data
        self._width = bundle.target.hidden_size
        self.graph = onnx.load(str(self.path), load_external_data=False).graph
        self._stored = {each.name: each for each in self.graph.initializer}
        self.constants = {
            name: np.array(numpy_helper.to_array(each))
            for name, each in self._stored.items()
            if not each.external_data
        }
        self._made = {name: node for node in self.graph.node for name in node.output}
        require_names(self._made, self.path, 0)

    @cached_property
    def _projection(self) -> NodeProto:
        return self._made[self._made[LOGITS].input[0]]

    @property
    def _final_norm(self) -> NodeProto:
        return final_norm(self._made)

    @property
    def norm(self) -> Floats:
        """The weight of the final norm, [H] float32."""
        return self.constants[self._final_norm.input[1]]

    @property
    def eps(self) -> float:
        """The final norm's epsilon."""
        return float(attributes(self._final_norm)["epsilon"])

    @property
    def embedding(self) -> MatrixTiles:
        """The embedding, with the scale that the target applies to it."""
        node = self._made[entering(0)]
        factor = 1.0
        if node.op_type == "Mul":
            factor = float(self.constants[node.input[1]])
            node = self._made[node.input[0]]
        return self._matrix(node.input[1], attributes(node)["format"], factor)

    @property
    def projection(self) -> MatrixTiles:
        """The output projection."""
        node = self._projection
        return self._matrix(node.input[3], attributes(node)["formats"])

    def tiles(self, name: str, form: str, rows: int) -> MatrixTiles:
        """Returns a matrix of so many rows, of columns up to a whole unit of its tiles."""
        kind = TILE_FORMATS[form]
        length = ExternalDataInfo(self._stored[name]).length
        units = length // (-(-rows // LANES) * kind.unit_bytes)
        return self._tiles(name, form, units * kind.unit)

    def _matrix(self, name: str, form: str, factor: float = 1.0) -> MatrixTiles:
        return self._tiles(name, form, self._width, factor)

    def _tiles(self, name: str, form: str, width: int, factor: float = 1.0) -> MatrixTiles:
        kind = TILE_FORMATS[form]
        place = ExternalDataInfo(self._stored[name])
        units = -(-width // kind.unit)
        shape = place.length // (units * kind.unit_bytes), units, kind.unit_bytes
        tiles = np.memmap(self._data, np.uint8, "r", place.offset, shape)
        return MatrixTiles(name, tiles, form, width, factor)
