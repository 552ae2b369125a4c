"""Quantized embeddings for devices that may not compute in half precision."""

from __future__ import annotations

from pathlib import Path

import onnx


def wide_rows(graph: Path) -> bytes:
    """A stage that widens the scales of its embedding instead of the rows that it looks up.

    ONNX Runtime does that once, as it loads, and then looks up in float32. The file has it the
    other way round for OpenVINO, which wants these scales to be constants. The weights stay where
    they are.
    """
    model = onnx.load(str(graph), load_external_data=False)
    nodes = model.graph.node
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
    return bytes(model.SerializeToString())
