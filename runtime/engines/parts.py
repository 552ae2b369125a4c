"""Parts of a native graph: all but some sublayers or tokens, or the layers on a side of one.

Each sublayer adds to the residual stream, which is named `entering.L` where layer L is entered, so
that parts are found by names alone. Weights stay where they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from edgespec.bundle import LOGITS
from edgespec.runtime.arrays import Array

_RESIDUAL, _WEIGHTS = 2, 3  # inputs of `BlockLinear`, of which the weights are the last ones
_BORDER = "entering."
_TILE = 16  # rows of a matrix that lie together
_KEY_SCALE = 13  # input of `TreeAttention`


def without(graph: Path, skipped: Collection[int]) -> bytes:
    """Returns the content of a graph that gives logits without some sublayers.

    Whoever reads the stream behind a sublayer that is left out reads it from before. What nobody
    reads any more is dropped, weights and pools too.

    Args:
        graph: a native graph.
        skipped: numbers of sublayers, see `edgespec.bundle.sublayers`.

    Raises:
        ValueError: if the graph does not have such sublayers.
    """
    model = onnx.load(str(graph), load_external_data=False)
    stream = _stream(model.graph)
    if not set(skipped) <= set(range(len(stream))):
        raise ValueError(f"sublayers {sorted(skipped)} of {len(stream)}")
    renamed = dict[str, str]()
    for number in sorted(skipped):
        before, behind = stream[number]
        renamed[behind] = renamed.get(before, before)
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    return _part(model, [LOGITS])


def scoring(graph: Path, count: int) -> bytes:
    """Returns the content of a graph that scores the first `count` tokens alone.

    Args:
        graph: a native graph.
        count: a multiple of 16, and fewer than the graph scores.

    Raises:
        ValueError: if the logits are not those of one matrix without a bias.
    """
    model = onnx.load(str(graph), load_external_data=False)
    producers = _producers(model.graph)
    name = LOGITS
    while (head := producers[name]).op_type in ("Identity", "Mul", "Tanh"):
        name = head.input[0]
    if head.op_type != "BlockLinear" or any(head.input[1:_WEIGHTS]) or len(head.input) > 4:
        raise ValueError(f"logits are made by {head.op_type} of {len(head.input)} inputs")
    columns = next(each.ints for each in head.attribute if each.name == "columns")
    kept = next(each for each in model.graph.initializer if each.name == head.input[_WEIGHTS])
    part = onnx.TensorProto.FromString(kept.SerializeToString())
    tiles = -(-columns[0] // _TILE)
    part.name, part.dims[0] = f"{kept.name}:{count}", kept.dims[0] // tiles * (count // _TILE)
    next(each for each in part.external_data if each.key == "length").value = str(part.dims[0])
    columns[0], head.input[_WEIGHTS] = count, part.name
    model.graph.initializer.append(part)
    shape = next(each for each in model.graph.output if each.name == LOGITS).type.tensor_type.shape
    shape.dim[1].dim_value = count
    return _part(model, [LOGITS])


def cut_graph(graph: Path, layer: int, width: int) -> tuple[bytes, bytes]:
    """Cuts a graph where a layer is entered.

    Args:
        graph: a native graph.
        layer: number of the layer, not the first.
        width: columns of the residual stream.

    Returns:
        The contents of two graphs. The second has the layer, those behind it and the head, and
        reads rows of the stream, `entering.N` [S, width] float32, which the first returns.

    Raises:
        ValueError: if layers behind the cut read more of those before it than one stream.
    """
    model = onnx.load(str(graph), load_external_data=False)
    producers = _producers(model.graph)
    if (begin := producers.get(f"{_BORDER}0")) is not None and begin.op_type == "Concat":
        raise ValueError("its layers have several streams of rows")
    before = _needed(producers, [f"{_BORDER}{layer}"])
    read = {
        name for node in model.graph.node if not before & set(node.output) for name in node.input
    }
    crossing = sorted(before & read & producers.keys())
    streams = [name for name in crossing if name.startswith(_BORDER)]
    _require_only(streams, before & read, crossing, f"layers from {layer} on")
    rows = _declared(crossing, width)
    outputs = [each.name for each in model.graph.output]
    first = onnx.ModelProto.FromString(model.SerializeToString())
    first.graph.output.extend(rows)
    model.graph.input.extend(rows)
    return _part(first, crossing), _part(model, outputs, crossing)


def layers_of(graph: Path, count: int, width: int) -> list[bytes]:
    """Takes the first layers of a native graph apart.

    Args:
        graph: a native graph, which can be cut where layer `count` is entered.
        count: number of layers.
        width: columns of the residual stream.

    Returns:
        The contents of what gives the rows that enter layer 0, and of each layer: it reads rows
        `entering.L` [S, width] and returns `entering.L+1`.

    Raises:
        ValueError: if a layer reads more of those before it than one stream, or has states.
    """
    whole = onnx.load(str(graph), load_external_data=False)
    producers = _producers(whole.graph)
    parts = []
    given = list[str]()
    for number in range(count + 1):
        name = f"{_BORDER}{number}"
        made = {each: node for each, node in producers.items() if each not in given}
        needed = _needed(made, [name])
        before = _needed(producers, given)
        _require_only(given, needed & before, producers, f"layer {number - 1}")
        if states := sorted(each for each in needed if each.startswith("states.")):
            raise ValueError(f"layer {number - 1} has {states[0]}")
        model = onnx.ModelProto.FromString(whole.SerializeToString())
        model.graph.input.extend(_declared(given, width))
        if all(each.name != name for each in model.graph.output):
            model.graph.output.extend(_declared([name], width))
        parts.append(_part(model, [name], given))
        given = [name]
    return parts


def entered(part: bytes) -> list[str]:
    """Returns the names of the rows of other parts that a part of a graph reads."""
    inputs = onnx.load_from_string(part).graph.input
    return [each.name for each in inputs if each.name.startswith(_BORDER)]


def key_scale(part: bytes) -> Array | None:
    """Returns what a layer's keys are multiplied by in its pool; None if they are not."""
    graph = onnx.load_from_string(part).graph
    held = {each.name: each for each in graph.initializer}
    attentions = [each for each in graph.node if each.op_type == "TreeAttention"]
    names = [name for each in attentions for name in each.input[_KEY_SCALE : _KEY_SCALE + 1]]
    found = [held[name] for name in names if name]
    return numpy_helper.to_array(found[0]) if found else None


def _declared(names: Iterable[str], width: int) -> list[Any]:
    """Declares rows of the residual stream."""
    kind = TensorProto.FLOAT
    return [helper.make_tensor_value_info(name, kind, ["S", width]) for name in names]


def _require_only(
    streams: Collection[str], shared: Iterable[str], made: Collection[str], who: str
) -> None:
    """Checks that layers share nothing that is made, and no pool, with those before them.

    Raises:
        ValueError: if they share more than these streams of rows.
    """
    odd = [each for each in shared if each.startswith("pool.") or each in made]
    if further := sorted(set(odd) - set(streams)):
        raise ValueError(f"{who} read {further[0]} of those before them")


def _producers(graph: Any) -> dict[str, Any]:
    """Returns the node that makes each value."""
    return {name: node for node in graph.node for name in node.output}


def _stream(graph: Any) -> list[tuple[str, str]]:
    """Returns the names of the residual stream before and behind each sublayer."""
    producers = _producers(graph)
    end = next(
        each for each in graph.node if each.op_type == "Gather" and "logit_rows" in each.input
    )
    behind = end.input[0]
    stream = list[tuple[str, str]]()
    inputs = ("BlockEmbedding", "Where")
    while (node := producers[behind]).op_type not in inputs and behind != f"{_BORDER}0":
        # By a factor of a layer or of the embedding, or with rows that pictures add to the stream.
        if node.op_type in ("Mul", "Sum"):
            behind = node.input[0]
            continue
        before = node.input[_RESIDUAL if node.op_type == "BlockLinear" else 0]
        stream.append((before, behind))
        behind = before
    return stream[::-1]


def _needed(producers: dict[str, Any], wanted: Iterable[str]) -> set[str]:
    """Returns the names of all that these values depend on, and theirs."""
    needed = set[str]()
    waiting = [*wanted]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += producers[name].input if name in producers else ()
    return needed


def _part(model: Any, wanted: Iterable[str], given: Collection[str] = ()) -> bytes:
    """Returns the content of what these values need, where some others are given."""
    graph = model.graph
    producers = {name: node for name, node in _producers(graph).items() if name not in given}
    needed = _needed(producers, wanted)
    made = needed & producers.keys()
    for own, kept in (
        (graph.node, [node for node in graph.node if made & set(node.output)]),
        (graph.input, [each for each in graph.input if each.name in needed]),
        (graph.output, [each for each in graph.output if each.name in needed]),
        (graph.initializer, [each for each in graph.initializer if each.name in needed]),
    ):
        held = [type(each).FromString(each.SerializeToString()) for each in kept]
        del own[:]
        own.extend(held)
    return bytes(model.SerializeToString())
