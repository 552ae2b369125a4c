"""The same graph in half precision: every number of a product, and every row between operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, external_data_helper, helper, numpy_helper

from edgespec.bundle import TARGET_FEATURES
from edgespec.export.graph_builder import DataFile

_FLOAT, _HALF = TensorProto.FLOAT, TensorProto.FLOAT16
# Of these, states need more than half precision, and pools are what the user asked for.
_WIDE = ("pool.", "keys.", "values.", "rows.", "states.", TARGET_FEATURES)


def write_halves(graph: Path, halves: Path, data: Path) -> None:
    """Writes the form of a portable graph that computes in half precision, beside it.

    Levels of weights stay in the file where they are; scales, offsets and floats are written anew.
    Nothing is written where keys and values are in single precision, or layers have states, or for
    a draft head, whose target's features may be of any size.

    Args:
        graph: the portable graph.
        halves: the file to write.
        data: the file of its own data.
    """
    model = onnx.load(str(graph), load_external_data=False)
    inputs = model.graph.input
    if any(_is_float(each) and each.name.startswith(_WIDE) for each in inputs):
        return
    told = [each.name for each in model.graph.output if _is_float(each)]
    file = DataFile(data)
    try:
        _narrow_weights(model, graph.parent, file)
    finally:
        file.close()
    for each in inputs:
        if _is_float(each):
            each.type.tensor_type.elem_type = _HALF
    for node in model.graph.node:
        _narrow_node(node, told)
    halves.write_bytes(model.SerializeToString())


def _narrow_weights(model: ModelProto, folder: Path, file: DataFile) -> None:
    """Lets initializers be in half precision; those that share their bytes still do."""
    places = dict[tuple[str, int], int]()
    for each in model.graph.initializer:
        if each.data_type != _FLOAT:
            continue
        if not external_data_helper.uses_external_data(each):
            narrow = _in_half(numpy_helper.to_array(each))
            each.CopyFrom(numpy_helper.from_array(narrow, each.name))
            continue
        place = external_data_helper.ExternalDataInfo(each)
        key = place.location, int(place.offset or 0)
        size = int(np.prod(each.dims))
        if key not in places:
            stored = np.memmap(folder / place.location, np.float32, "r", key[1], (size,))
            places[key] = file.begin(2 * size)
            file.write(_in_half(stored))
        each.data_type = _HALF
        del each.external_data[:]
        facts = (("location", file.name), ("offset", places[key]), ("length", 2 * size))
        for name, value in facts:
            each.external_data.add(key=name, value=str(value))


def _narrow_node(node: NodeProto, told: list[str]) -> None:
    """Lets a node compute in half precision; what users are told stays in single precision."""
    if node.op_type == "Identity" and node.output[0] in told:
        node.op_type = "Cast"
        node.attribute.append(helper.make_attribute("to", _FLOAT))
        return
    for each in node.attribute:
        if node.op_type == "Cast" and each.name == "to" and each.i == _FLOAT:
            each.i = _HALF


def _in_half(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):  # such weights are found when the graph is tried
        return values.astype(np.float16)


def _is_float(value: Any) -> bool:
    return bool(value.type.tensor_type.elem_type == _FLOAT)
