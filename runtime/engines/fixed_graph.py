"""Makes ONNX files of fixed shape, in memory, from files with symbolic dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from edgespec.runtime.engines.base import StageFile
from edgespec.runtime.engines.fixed import LENGTHS, is_ordered, lengths
from edgespec.runtime.engines.ort_session import look_for_data_beside, open_session
from edgespec.runtime.shapes import Shape
from edgespec.runtime.shapes import dimension as size_of


def open_fixed(stage: StageFile, shape: Shape, options: Any, providers: Any = None) -> Any:
    """Opens an ONNX Runtime session for a stage of fixed shape.

    Raises:
        DeviceError: if ONNX Runtime refuses it.
    """
    look_for_data_beside(stage.graph, options)
    name = f"{stage.graph} for {shape.rows} rows and a capacity of {shape.capacity}"
    return open_session(fixed_graph(stage.graph, shape), options, providers, name)


def fixed_graph(graph: Path, shape: Shape) -> bytes:
    """Returns a stage's ONNX file with numbers instead of symbolic dimensions.

    The weights stay in their file.

    Args:
        graph: the stage's ONNX file.
        shape: rows S and capacity C; R is S.
    """
    model = onnx.load(str(graph), load_external_data=False)
    inputs = model.graph.input
    ordered = is_ordered(tensor.name for tensor in inputs)
    for tensor in (*inputs, *model.graph.output):
        for dimension in tensor.type.tensor_type.shape.dim:
            if dimension.dim_param:
                dimension.dim_value = size_of(dimension.dim_param, shape)
    for number, tensor in enumerate(inputs):
        if tensor.name == LENGTHS:
            del inputs[number]
            constant = numpy_helper.from_array(np.array(lengths(shape, ordered), np.int64), LENGTHS)
            model.graph.initializer.append(constant)
            break
    return bytes(model.SerializeToString())
