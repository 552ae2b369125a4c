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
    wanted, nodes, initializers = [entering(0)], list[onnx.NodeProto](), list[onnx.TensorProto]()
    require_names(makers, Path(source.graph.name), 0)
    while wanted:
        name = wanted.pop()
        if name in stored:
            initializers.append(stored[name])
        elif name != _IDS:
            node = onnx.NodeProto()
            node.CopyFrom(makers[name])
            node.name = _PREFIX + node.name
            wanted += node.input
            nodes.insert(0, node)
    kept = {_IDS, *stored}
    for node in nodes:  # names of values must differ from those of the head's own nodes
        for names in (node.input, node.output):
            names[:] = [name if name in kept else _PREFIX + name for name in names]
    graph.graft(nodes, initializers)
    return _PREFIX + entering(0)


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
    stored = {each.name: each for each in source.graph.initializer}
    node, logits = onnx.NodeProto(), _PREFIX + LOGITS
    node.CopyFrom(makers[makers[LOGITS].input[0]])
    node.name, node.input[0], node.output[0] = logits, x, logits
    graph.graft([node], [stored[name] for name in node.input[1:] if name])
    return logits
