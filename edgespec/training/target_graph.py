"""The matrices that a head takes from its target: embedding, final norm, output projection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgespec.bundle import Bundle
from edgespec.errors import InputError
from edgespec.export.graph_builder import entering
from edgespec.export.formats.blocks import QuantizedRows, dequantize_rows
from edgespec.export.heads.taps import require_names
from edgespec.runtime.arrays import Floats

Number = TypeVar("Number", int, float)

Ids = Sequence[int] | npt.NDArray[np.integer]


@dataclass(frozen=True)
class Matrix:
    """A matrix with a row per token in a bundle's data file.

    Attributes:
        stored: [N, ...] floats, or the packed integers of blocks.
        scales: the scales; None for floats.
        bits: bits of the integers; 0 for floats.
        block_size: number of integers per scale; 0 for floats.
        width: K, the number of columns.
        factor: what rows are multiplied by.
    """

    stored: npt.NDArray[np.generic]
    scales: npt.NDArray[np.float16] | None
    bits: int
    block_size: int
    width: int
    factor: float = 1.0

    def rows(self, ids: Ids) -> Floats:
        """Returns rows as engines compute with them, [n, K] float32."""
        chosen = np.asarray(ids)
        rows: Floats
        if self.scales is None:
            rows = self.stored[chosen].astype(np.float32)
        else:
            packed = self.stored[chosen].reshape(len(chosen), -1, self.block_size * self.bits // 8)
            scales = self.scales[chosen].reshape(packed.shape[:2])
            found = QuantizedRows(packed.astype(np.uint8), scales, 0.0, 0.0, 0.0)
            rows = dequantize_rows(found, self.bits)[:, : self.width]
        if self.factor != 1:
            rows *= np.float32(self.factor)
        return rows


class TargetGraph:
    """The graphs of a bundle's target.

    Args:
        bundle: the bundle.

    Raises:
        ExportError: if an older version exported it.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._nodes: list[onnx.NodeProto] = []
        self._stored: dict[str, TensorProto] = {}
        for stage in bundle.target.stages:
            graph = onnx.load(str(bundle.path / stage.graph), load_external_data=False).graph
            self._nodes += graph.node
            self._stored |= {each.name: each for each in graph.initializer}
        self._made = {name: node for node in self._nodes for name in node.output}
        require_names(self._made, bundle.path / bundle.target.stages[0].graph, 0)

    @property
    def _before_head(self) -> onnx.NodeProto:
        """The node that picks the rows whose logits are wanted."""
        (found,) = (
            node for node in self._nodes
            if node.op_type == "Gather" and list(node.input[1:]) == ["logit_rows"]
        )  # fmt: skip
        return found

    @cached_property
    def _final_norm(self) -> onnx.NodeProto:
        rows = self._before_head.output[0]
        return next(node for node in self._nodes if node.input[:1] == [rows])

    @property
    def norm(self) -> Floats:
        """The weight of the final norm, [H] float32."""
        return self._computed(self._final_norm.input[1])

    @property
    def eps(self) -> float:
        """The final norm's epsilon."""
        return _attribute(self._final_norm, "epsilon", 1e-5)

    @property
    def embedding(self) -> Matrix:
        """The embedding, with the scale that the target applies to it."""
        value, factor = entering(0), 1.0
        while self._made[value].op_type in ("Cast", "Mul"):
            node = self._made[value]
            if node.op_type == "Mul":
                factor = float(self._read(node.input[1]))
            value = node.input[0]
        node = self._made[value]
        if node.op_type == "Gather":
            stored = self._read(node.input[0])
            return Matrix(stored, None, 0, 0, stored.shape[1], factor)
        stored, scales = self._read(node.input[0]), self._read(node.input[2])
        bits = _attribute(node, "bits", 4)
        return Matrix(
            stored, scales.astype(np.float16), bits, _attribute(node, "block_size", 128),
            stored.shape[1] * 8 // bits, factor,
        )  # fmt: skip

    @property
    def projection(self) -> Matrix:
        """The output projection."""
        value = self._final_norm.output[0]
        node = next(node for node in self._nodes if value in node.input)
        if node.op_type == "MatMulNBits":
            stored, scales = self._read(node.input[1]), self._read(self._source(node.input[2]))
            return Matrix(
                stored, scales.astype(np.float16), _attribute(node, "bits", 4),
                _attribute(node, "block_size", 128), _attribute(node, "K", 0),
            )  # fmt: skip
        if node.op_type == "Gemm":
            stored = self._read(self._source(node.input[1]))
            return Matrix(stored, None, 0, 0, stored.shape[1])
        raise InputError(
            f"{self._bundle.path}: its output projection is a {node.op_type}, which training "
            "cannot read: export it again"
        )

    def _computed(self, name: str) -> Floats:
        """Returns a stored vector, or a sum or product of such: Gemma adds 1, Granite divides."""
        if name in self._stored:
            stored: Floats = self._read(name).astype(np.float32)
            return stored
        node = self._made[name]
        combine = {"Add": np.add, "Mul": np.multiply}[node.op_type]
        computed: Floats = combine(*(self._computed(each) for each in node.input))
        return computed

    def _source(self, name: str) -> str:
        """Returns the initializer behind a cast."""
        return name if name in self._stored else self._made[name].input[0]

    def _read(self, name: str) -> npt.NDArray[np.generic]:
        tensor = self._stored[name]
        if tensor.data_location != TensorProto.EXTERNAL:
            array: npt.NDArray[np.generic] = numpy_helper.to_array(tensor)
            return array
        place = {entry.key: entry.value for entry in tensor.external_data}
        return np.memmap(
            self._bundle.path / place["location"],
            helper.tensor_dtype_to_np_dtype(tensor.data_type),
            "r",
            int(place["offset"]),
            tuple(tensor.dims),
        )


def _attribute(node: onnx.NodeProto, name: str, default: Number) -> Number:
    for each in node.attribute:
        if each.name == name:
            found: Number = helper.get_attribute_value(each)
            return found
    return default
