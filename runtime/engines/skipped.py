"""A native graph without some of its sublayers, for drafts by a part of the target."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import onnx

from edgespec.bundle import LOGITS

_RESIDUAL = 2  # input of `BlockLinear`


def without(graph: Path, skipped: Collection[int]) -> bytes:
    """Returns the content of a graph that gives logits without some sublayers.

    Each sublayer adds to the residual stream, so whoever reads the stream behind one that is left
    out reads it from before. What nobody reads any more is dropped, weights and pools too.

    Args:
        graph: a native graph.
        skipped: numbers of sublayers, see `edgespec.bundle.sublayers`.

    Raises:
        ValueError: if the graph does not have such sublayers.
    """
    model = onnx.load(str(graph), load_external_data=False)
    producers = {name: node for node in model.graph.node for name in node.output}
    stream = _stream(model.graph, producers)
    if not set(skipped) <= set(range(len(stream))):
        raise ValueError(f"sublayers {sorted(skipped)} of {len(stream)}")
    renamed = dict[str, str]()
    for number in sorted(skipped):
        before, behind = stream[number]
        renamed[behind] = renamed.get(before, before)
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    _keep(model.graph, _needed(producers))
    return bytes(model.SerializeToString())


def _stream(graph: Any, producers: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the names of the residual stream before and behind each sublayer."""
    end = next(
        each for each in graph.node if each.op_type == "Gather" and "logit_rows" in each.input
    )
    behind, stream = end.input[0], list[tuple[str, str]]()
    while (node := producers[behind]).op_type != "BlockEmbedding":
        if node.op_type == "Mul":  # by a factor of a layer or of the embedding
            behind = node.input[0]
            continue
        before = node.input[_RESIDUAL if node.op_type == "BlockLinear" else 0]
        stream.append((before, behind))
        behind = before
    return stream[::-1]


def _needed(producers: dict[str, Any]) -> set[str]:
    """Returns the names of all that the logits depend on."""
    needed, waiting = set[str](), [LOGITS]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += producers[name].input if name in producers else ()
    return needed


def _keep(graph: Any, needed: set[str]) -> None:
    nodes = [node for node in graph.node if needed & set(node.output)]
    for own, kept in (
        (graph.node, nodes),
        (graph.input, [each for each in graph.input if each.name in needed]),
        (graph.output, [each for each in graph.output if each.name in needed]),
        (graph.initializer, [each for each in graph.initializer if each.name in needed]),
    ):
        held = [type(each).FromString(each.SerializeToString()) for each in kept]
        del own[:]
        own.extend(held)
