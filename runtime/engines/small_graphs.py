"""Graphs of a few nodes, made in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import helper

# Older than the graphs of models, so that every build that takes those takes these.
_OPSET, _IR_VERSION = 21, 10

Tensors = dict[str, tuple[int, Sequence[int | str]]]
"""Inputs or outputs by name: ONNX's number of the type, and the shape."""


def small_graph(
    nodes: Sequence[Any], inputs: Tensors, outputs: Tensors, constants: Sequence[Any] = ()
) -> bytes:
    """An ONNX file in memory.

    Args:
        nodes: in the order in which they run.
        inputs: of the graph.
        outputs: of the graph.
        constants: tensors that nodes read, by their names.
    """

    def described(tensors: Mapping[str, tuple[int, Sequence[int | str]]]) -> list[Any]:
        return [helper.make_tensor_value_info(name, *each) for name, each in tensors.items()]

    graph = helper.make_graph(
        nodes, "small", described(inputs), described(outputs), list(constants)
    )
    opset = helper.make_opsetid("", _OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)
    return bytes(model.SerializeToString())
