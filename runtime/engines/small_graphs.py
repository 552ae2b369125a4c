"""Builds ONNX graphs of a few nodes in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import helper

# Older than those of model graphs, so that every build that accepts models accepts these.
_OPSET, _IR_VERSION = 21, 10

Tensors = dict[str, tuple[int, Sequence[int | str]]]
"""Inputs or outputs by name: number of the ONNX element type, and shape."""


def small_graph(
    nodes: Sequence[Any], inputs: Tensors, outputs: Tensors, constants: Sequence[Any] = ()
) -> bytes:
    """Returns the content of an ONNX file.

    Args:
        nodes: nodes, in the order in which they run.
        inputs: inputs of the graph.
        outputs: outputs of the graph.
        constants: named tensors that nodes read.
    """

    def described(tensors: Mapping[str, tuple[int, Sequence[int | str]]]) -> list[Any]:
        return [helper.make_tensor_value_info(name, *each) for name, each in tensors.items()]

    graph = helper.make_graph(
        nodes, "small", described(inputs), described(outputs), list(constants)
    )
    opset = helper.make_opsetid("", _OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)
    return bytes(model.SerializeToString())
