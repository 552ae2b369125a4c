"""Weights of a layer as inputs of its graph: so layers that are alike share one session."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from edgespec.runtime.arrays import Array

GIVEN = "weight."
"""Beginning of the names of such inputs."""

_NUMBERED = re.compile(r"(entering|keys|new|pool|values)\.(\d+)(.*)")
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def take_weights(model: Any, folder: Path) -> dict[str, Array]:
    """Makes inputs of a layer's weights, and gives all names the numbers that layer 0 has.

    What says how values are shaped stays in the graph. So graphs of layers that are alike have the
    same content.

    Args:
        model: the graph of one layer, which is changed.
        folder: folder of its data.

    Returns:
        The weights by the names of the inputs, mapped from the file of data.
    """
    graph = model.graph
    names = _renamed(graph)
    read = {name for node in graph.node for name in node.input}
    weights = dict[str, Array]()
    kept = []
    for each in graph.initializer:
        if each.name not in read:
            continue
        if not _is_weight(each):
            kept.append(TensorProto.FromString(each.SerializeToString()))
            continue
        names[each.name] = name = f"{GIVEN}{len(weights)}"
        weights[name] = _stored(each, folder)
        graph.input.append(helper.make_tensor_value_info(name, each.data_type, each.dims))
    del graph.initializer[:]
    graph.initializer.extend(kept)
    for number, node in enumerate(graph.node):
        node.name = str(number)
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*graph.input, *graph.output):
        value.name = names.get(value.name, value.name)
    return weights


def _renamed(graph: Any) -> dict[str, str]:
    """Returns the names of inputs and outputs that have a layer's number, with those of layer 0."""
    found = [_NUMBERED.fullmatch(each.name) for each in (*graph.input, *graph.output)]
    numbered = [each for each in found if each is not None]
    first = min(int(each[2]) for each in numbered)
    return {each[0]: f"{each[1]}.{int(each[2]) - first}{each[3]}" for each in numbered}


def _is_weight(tensor: TensorProto) -> bool:
    if external_data_helper.uses_external_data(tensor):
        return True
    return bool(tensor.dims) and tensor.data_type in _FLOATS


def _stored(tensor: TensorProto, folder: Path) -> Array:
    """Returns what an initializer holds, mapped if it lies in a file."""
    if not external_data_helper.uses_external_data(tensor):
        inside: Array = numpy_helper.to_array(tensor)
        return inside
    place = external_data_helper.ExternalDataInfo(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    shape = tuple(tensor.dims)
    return np.memmap(folder / place.location, dtype, "r", int(place.offset or 0), shape)
