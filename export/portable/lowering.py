"""What the lowering of each operator needs: names of values, weights, and pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from onnx import (
    GraphProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    external_data_helper,
    helper,
    numpy_helper,
)

from edgespec.bundle.options import GraphForm
from edgespec.export.graph_builder import CONTRIB, DataFile, GraphBuilder, Shape
from edgespec.export.portable.weights import PortableWeights, TileMatrix

FLOAT = TensorProto.FLOAT
# Operators whose results are as wide as their first inputs, Where's condition aside. ONNX's norms
# are in graphs that were made before there was a `Norm`.
_AS_WIDE = ("Add", "Gather", "LayerNormalization", "Mul", "RMSNormalization", "Where")
_Made = TypeVar("_Made")


class Lowering:
    """A portable graph while it is made.

    Args:
        native: the native graph.
        folder: folder of its tiles.
        graph: receives the nodes.
        data: file of the portable graph's data.
        form: what the graph is made of.

    Attributes:
        graph: see above.
        weights: stores matrices.
        widths: columns of values of the native graph, where they are known.
        sizes: last dimension of initializers.
        inputs: those of the native graph.
        form: see above.
        shared: what lowerings of several nodes share, by a key of theirs.
        apart: values of two matrices side by side that are wanted apart.
        in_order: names of the pools whose rows lie in the order in which they were written.
    """

    def __init__(
        self,
        native: GraphProto,
        folder: Path,
        graph: GraphBuilder,
        data: DataFile,
        form: GraphForm,
    ) -> None:
        self.graph = graph
        self.form = form
        self.widths: dict[str, int] = {}
        self.inputs = {each.name: each for each in native.input}
        self.shared: dict[Any, Any] = {}
        self.apart: set[str] = set()
        self.in_order: set[str] = set()
        self._values: dict[str, str] = {}
        self._sums: dict[str, tuple[str, str]] = {}
        self.sizes = {each.name: each.dims[-1] for each in native.initializer if each.dims}
        self._tiles = {
            each.name: external_data_helper.ExternalDataInfo(each)
            for each in native.initializer
            if external_data_helper.uses_external_data(each)
        }
        self._constants = {
            each.name: each for each in native.initializer if each.name not in self._tiles
        }
        self._grafted: set[str] = set()
        self._folder = folder
        self.weights = PortableWeights(graph, data, form)

    def value(self, name: str) -> str:
        """Returns the name of a value of the native graph here; empty for one that is left out."""
        if name in self._constants and name not in self._grafted:
            self._grafted.add(name)
            self.graph.graft([], [self._constants[name]])
        if parts := self.parts_of_sum(name):
            self._values[name] = self.graph.op("Add", *parts)
        return self._values.get(name, name)

    def constant(self, name: str, kind: int) -> str:
        """Returns the name of a small constant of the native graph here, with other numbers."""
        return self.graph.constant(self.array(name), helper.tensor_dtype_to_np_dtype(kind))

    def array(self, name: str) -> npt.NDArray[np.generic]:
        """Returns the numbers of a small constant of the native graph."""
        values: npt.NDArray[np.generic] = numpy_helper.to_array(self._constants[name])
        return values

    def once(self, key: object, make: Callable[[], _Made]) -> _Made:
        """Returns what several nodes share, made by the first of them."""
        if key not in self.shared:
            self.shared[key] = make()
        made: _Made = self.shared[key]
        return made

    def sum_of(self, first: str, second: str) -> str:
        """Returns the sum of two values here, for `keep`: a fused norm may add them."""
        if self.form.fused is None:
            return self.graph.op("Add", first, second)
        name = f"{first} + {second}"
        self._sums[name] = first, second
        return name

    def parts_of_sum(self, name: str) -> tuple[str, str] | None:
        """Returns the values whose sum a value of the native graph is, if nothing has added them.

        Whoever asks keeps the sum.
        """
        return self._sums.pop(self._values.get(name, name), None)

    def keep(self, name: str, value: str) -> None:
        """Makes a value here that of the native graph with this name."""
        self._values[name] = value

    def copy(self, node: NodeProto) -> None:
        """Emits a node of the native graph as it is."""
        names = self.graph.multi_op(
            node.op_type,
            *(self.value(name) for name in node.input),
            outputs=len(node.output),
            domain=node.domain,
            **attributes(node),
        )
        self._values |= zip(node.output, names, strict=True)
        if node.op_type == "Split" and len(node.input) > 1 and attributes(node)["axis"] == 1:
            self.widths |= zip(node.output, self.array(node.input[1]).tolist(), strict=True)
        like = node.input[node.op_type == "Where"]
        if node.op_type in _AS_WIDE and like in self.widths:
            self.widths[node.output[0]] = self.widths[like]

    def matrices(self, node: NodeProto, first: int, experts: int = 1) -> list[TileMatrix]:
        """Returns the matrices of a product, the inputs from number `first` on.

        Those of several experts lie one behind the other: the first one's are returned.
        """
        own = attributes(node)
        each = zip(node.input[first:], own["formats"].split(), own["columns"], strict=True)
        found = (self.matrix(*one) for one in each)
        return [replace(matrix, nbytes=matrix.nbytes // experts) for matrix in found]

    def matrix(self, name: str, kind: str, rows: int) -> TileMatrix:
        """Returns the matrix of an initializer of tiles."""
        place = self._tiles[name]
        file = self._folder / place.location  # a head's matrices may be the target's
        return TileMatrix(name, kind, rows, file, place.offset or 0, place.length or 0)

    def width(self, name: str, matrix: TileMatrix) -> int:
        """Returns the columns of a product's input: where they are not known, those of tiles."""
        return self.widths.get(name, matrix.width)

    def are_rows(self, *names: str) -> bool:
        """Returns whether values of the native graph are known to be rows of one width."""
        found = {self.widths.get(name) for name in names}
        return len(found) == 1 and None not in found


def silu(low: Lowering, x: str) -> str:
    """Emits a SiLU, in one operator where there are fused ones."""
    if low.form.fused is not None:
        return low.graph.op("QuickGelu", x, domain=CONTRIB, alpha=1.0)
    return low.graph.op("Mul", x, low.graph.op("Sigmoid", x))


def attributes(node: NodeProto) -> dict[str, Any]:
    """Returns a node's attributes."""
    found = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    return {name: v.decode() if isinstance(v, bytes) else v for name, v in found.items()}


def dims_of(value: ValueInfoProto) -> Shape:
    """Returns the dimensions of an input or output."""
    return [each.dim_param or each.dim_value for each in value.type.tensor_type.shape.dim]
