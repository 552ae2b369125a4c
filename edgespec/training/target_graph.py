"""The matrices that a head takes from its target: embedding, final norm, output projection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from edgespec.bundle import LOGITS, Bundle
from edgespec.errors import InputError
from edgespec.export.formats.tiles import LANES, TILE_FORMATS, tile_weights
from edgespec.export.graph_builder import entering
from edgespec.export.heads.taps import require_names
from edgespec.runtime.arrays import Floats

Ids = Sequence[int] | npt.NDArray[np.integer]


@dataclass(frozen=True)
class TokenTiles:
    """A matrix [N, K] with a row per token in a bundle's file of tiles.

    Attributes:
        tiles: [ceil(N / 16), units, bytes of a unit] uint8.
        format: name of their format.
        width: K, the number of columns.
        factor: what rows are multiplied by.
    """

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


class TargetGraph:
    """The graph of a bundle's target.

    Args:
        bundle: the bundle.

    Raises:
        ExportError: if an older version exported it.
        InputError: if another program exported it.
    """

    def __init__(self, bundle: Bundle) -> None:
        native = bundle.target.native
        if native.adopted:
            raise InputError(f"{bundle.path}: training needs a target that edgespec exported")
        self._data = bundle.path / native.data
        self._width = bundle.target.hidden_size
        graph = onnx.load(str(bundle.path / native.graph), load_external_data=False).graph
        self._stored = {each.name: each for each in graph.initializer}
        self._made = {name: node for node in graph.node for name in node.output}
        require_names(self._made, bundle.path / native.graph, 0)

    @cached_property
    def _projection(self) -> NodeProto:
        return self._made[self._made[LOGITS].input[0]]

    @property
    def _final_norm(self) -> NodeProto:
        return self._made[self._projection.input[0]]

    @property
    def norm(self) -> Floats:
        """The weight of the final norm, [H] float32."""
        return np.array(numpy_helper.to_array(self._stored[self._final_norm.input[1]]))

    @property
    def eps(self) -> float:
        """The final norm's epsilon."""
        return float(_attributes(self._final_norm)["epsilon"])

    @property
    def embedding(self) -> TokenTiles:
        """The embedding, with the scale that the target applies to it."""
        node = self._made[entering(0)]
        factor = 1.0
        if node.op_type == "Mul":
            factor = float(numpy_helper.to_array(self._stored[node.input[1]]))
            node = self._made[node.input[0]]
        return self._matrix(node.input[1], _attributes(node)["format"].decode(), factor)

    @property
    def projection(self) -> TokenTiles:
        """The output projection."""
        node = self._projection
        return self._matrix(node.input[3], _attributes(node)["formats"].decode())

    def _matrix(self, name: str, form: str, factor: float = 1.0) -> TokenTiles:
        kind = TILE_FORMATS[form]
        place = ExternalDataInfo(self._stored[name])
        units = -(-self._width // kind.unit)
        shape = place.length // (units * kind.unit_bytes), units, kind.unit_bytes
        tiles = np.memmap(self._data, np.uint8, "r", place.offset, shape)
        return TokenTiles(tiles, form, self._width, factor)


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}
