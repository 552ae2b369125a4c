"""Lets a target's graph return the hidden rows that enter some of its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import NodeProto, TensorProto, helper

from edgespec.bundle import FEATURES
from edgespec.errors import ExportError
from edgespec.export.graph_builder import entering
from edgespec.system.files import replaced

_FEATURES_NODE = f"output/{FEATURES}"


def add_taps(folder: Path, graph: str, taps: Sequence[int], hidden_size: int) -> None:
    """Gives a target's graph the output `features`; all else in it stays as it is.

    It has the rows that enter some layers, [S, taps * hidden_size] float32 in the order of layers.
    An output `features` of another head is replaced. The graph is written to a new file, and the
    weights are not touched.

    Args:
        folder: folder of the bundle.
        graph: file of the graph.
        taps: layers whose entering rows are wanted, ascending; the number of layers stands for the
            rows that enter the last norm.
        hidden_size: size of a row.

    Raises:
        ExportError: if the graph does not name these rows.
    """
    model = onnx.load(folder / graph, load_external_data=False)
    made = {name: node for node in model.graph.node for name in node.output}
    for tap in taps:
        require_names(made, folder / graph, tap)
    _remove_features(model.graph)
    rows = [entering(tap) for tap in taps]
    model.graph.node.append(
        helper.make_node("Concat", rows, [FEATURES], name=_FEATURES_NODE, axis=-1)
    )
    model.graph.output.append(
        helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, ["S", len(taps) * hidden_size])
    )
    # A new file, since the old one may have a name in another bundle, too.
    with replaced(folder / graph) as partial:
        partial.write_bytes(model.SerializeToString())


def require_names(made: Mapping[str, NodeProto], graph: Path, layer: int) -> None:
    """Checks that a graph names the rows that enter a layer.

    Args:
        made: the graph's nodes by the names of the values that they make.
        graph: its file.
        layer: number of the layer.

    Raises:
        ExportError: if it does not, or has several streams of rows.
    """
    if entering(layer) not in made:
        raise ExportError(
            f"{graph} does not name the rows that enter layer {layer}: export the checkpoint again"
        )
    if entering(0) in made and made[entering(0)].op_type == "Concat":
        raise ExportError(
            f"{graph} has several streams of rows, of which no draft head reads: use a draft "
            "model, or none"
        )


def _remove_features(graph: onnx.GraphProto) -> None:
    for parts, drop in (
        (graph.node, [node for node in graph.node if node.name == _FEATURES_NODE]),
        (graph.output, [each for each in graph.output if each.name == FEATURES]),
    ):
        for each in drop:
            parts.remove(each)
