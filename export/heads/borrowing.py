"""Reads a target's weights in the graph of its head, without a second copy of them."""

from __future__ import annotations

from pathlib import Path

import onnx

from edgespec.bundle import LOGITS
from edgespec.export.graph_builder import GraphBuilder, entering
from edgespec.export.heads.taps import require_names

_IDS = "input_ids"
_PREFIX = "target/"


def borrow_embedding(source: onnx.ModelProto, graph: GraphBuilder) -> str:
    """Copies the nodes that look tokens up from a target's graph.

    The initializers keep their place in the target's data file.

    Args:
        source: the target's graph, without its external data.
        graph: receives the nodes; it must have the input `input_ids`.

    Returns:
        The name of the embedding rows, [S, hidden] float32.

    Raises:
        ExportError: if the graph does not name these rows.
    """
    makers = {name: node for node in source.graph.node for name in node.output}
    stored = {each.name: each for each in source.graph.initializer}
    wanted = [entering(0)]
    nodes = list[onnx.NodeProto]()
    initializers = list[onnx.TensorProto]()
    require_names(makers, Path(source.graph.name), 0)
    while wanted:
        name = wanted.pop()
        if name in stored:
            initializers.append(_renamed(stored[name]))
        elif name != _IDS:
            node = onnx.NodeProto()
            node.CopyFrom(makers[name])
            node.name = _PREFIX + node.name
            wanted += node.input
            nodes.insert(0, node)
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [name if name == _IDS else _PREFIX + name for name in names]
    graph.graft(nodes, initializers)
    return _PREFIX + entering(0)


def borrow_norm(source: onnx.ModelProto, graph: GraphBuilder, x: str) -> str:
    """Copies the last norm from a target's graph; x, [n, hidden], are rows that enter it.

    Returns:
        The name of the normalized rows.
    """
    makers = {name: node for node in source.graph.node for name in node.output}
    return _borrowed(source, graph, makers[makers[makers[LOGITS].input[0]].input[0]], x)


def borrow_projection(source: onnx.ModelProto, graph: GraphBuilder, x: str) -> str:
    """Copies the output projection from a target's graph.

    Args:
        source: the target's graph, without its external data.
        graph: receives the nodes.
        x: [R, hidden], normalized rows.

    Returns:
        The name of the logits.
    """
    makers = {name: node for node in source.graph.node for name in node.output}
    return _borrowed(source, graph, makers[makers[LOGITS].input[0]], x)


def _borrowed(source: onnx.ModelProto, graph: GraphBuilder, found: onnx.NodeProto, x: str) -> str:
    """Copies a node and its weights, which reads x instead; returns the name of its output."""
    stored = {each.name: each for each in source.graph.initializer}
    node = onnx.NodeProto()
    name = f"{_PREFIX}{found.output[0]}"
    node.CopyFrom(found)
    node.name, node.input[0], node.output[0] = name, x, name
    initializers = [stored[each] for each in node.input[1:] if each]
    node.input[1:] = [each and _PREFIX + each for each in node.input[1:]]
    graph.graft([node], [_renamed(each) for each in initializers])
    return name


def _renamed(stored: onnx.TensorProto) -> onnx.TensorProto:
    """Returns an initializer under a name that no tensor of the head has."""
    renamed = onnx.TensorProto()
    renamed.CopyFrom(stored)
    renamed.name = _PREFIX + stored.name
    return renamed
