"""Makes ONNX files of fixed shape, in memory, from files with symbolic dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from edgespec.bundle.caches import grouped
from edgespec.runtime.engines.base import StageFile
from edgespec.runtime.engines.fixed import is_lengths, is_ordered, kept_by_input, lengths
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
    kept = kept_by_input(grouped(map(_described, inputs)), shape.capacity)
    for tensor in (*inputs, *model.graph.output):
        for dimension in tensor.type.tensor_type.shape.dim:
            if dimension.dim_param:
                dimension.dim_value = size_of(dimension.dim_param, shape)
    for tensor in [each for each in inputs if is_lengths(each.name)]:
        sizes = lengths(Shape(shape.rows, kept.get(tensor.name, shape.capacity)), ordered)
        constant = numpy_helper.from_array(np.array(sizes, np.int64), tensor.name)
        model.graph.initializer.append(constant)
        inputs.remove(tensor)
    return bytes(model.SerializeToString())


def _described(tensor: Any) -> tuple[str, list[str]]:
    """Returns the name and the dimensions of an input."""
    dimensions = tensor.type.tensor_type.shape.dim
    return tensor.name, [each.dim_param or str(each.dim_value) for each in dimensions]
