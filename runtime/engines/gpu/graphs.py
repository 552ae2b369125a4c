"""What a stage's graph needs on GPUs of ONNX Runtime's, and which of its nodes may stay behind."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto

# Operators that compute where rows are. Few devices have them for whole numbers of 64 bits, and
# where all that they read is on the host, nothing comes back from the device for them.
_PLACING = frozenset({"Add", "Gather", "Range", "ReduceProd", "Reshape", "Slice", "Unsqueeze"})


def widen_rows(graph: Any) -> None:
    """Lets a stage widen the scales of a quantized embedding instead of its output rows.

    ONNX Runtime widens the scales once at load, and then looks up rows in float32, for devices that
    may not support half precision. Exported files widen the rows, since OpenVINO needs constant
    scales.
    """
    nodes = graph.node
    readers = {node.input[0]: node for node in nodes if node.op_type == "Cast"}
    for place, node in enumerate(nodes):
        if node.op_type == "GatherBlockQuantized" and node.output[0] in readers:
            cast = onnx.NodeProto()
            cast.CopyFrom(readers[node.output[0]])
            nodes.remove(readers[node.output[0]])
            cast.input[0], cast.output[0], node.input[2], node.output[0] = (
                node.input[2], f"{node.input[2]}/wide", f"{node.input[2]}/wide", cast.output[0],
            )  # fmt: skip
            nodes.insert(place, cast)
            break


def on_host(graph: Any) -> frozenset[str]:
    """Returns the names of nodes that compute where rows are, from nothing but what the host knows.

    That is whole numbers among the inputs, constants, and shapes of tensors.
    """
    known = {each.name for each in graph.initializer if each.data_type == TensorProto.INT64}
    known |= {
        each.name for each in graph.input if each.type.tensor_type.elem_type == TensorProto.INT64
    }
    found = set[str]()
    for node in graph.node:  # in the order in which they run
        if node.op_type == "Shape":
            known.update(node.output)
        elif node.op_type in _PLACING and known.issuperset(filter(None, node.input)):
            known.update(node.output)
            found.add(node.name)
    return frozenset(found)
