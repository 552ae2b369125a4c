"""Rewrites quantized embeddings for devices that may not support half precision."""

from __future__ import annotations

from pathlib import Path

import onnx


def wide_rows(graph: Path) -> bytes:
    """Returns a stage's ONNX file that widens the embedding's scales instead of its output rows.

    ONNX Runtime widens the scales once at load, and then looks up rows in float32. Exported files
    widen the rows, since OpenVINO needs constant scales. The weights stay in their file.
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
