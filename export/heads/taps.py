"""Lets a target's graphs return the hidden rows that enter some of its layers."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from edgespec.bundle import FEATURES, Stage, Tensor
from edgespec.errors import ExportError
from edgespec.export.components.decoder import entering
from edgespec.system.files import replaced

_FEATURES_NODE = f"output/{FEATURES}"


def add_taps(
    folder: Path, stages: Sequence[Stage], taps: Sequence[int], hidden_size: int
) -> tuple[Stage, ...]:
    """Gives the graphs of stages the output `features`; all else in them stays as it is.

    An output `features` of another head is replaced. A stage returns the rows of those taps that
    it computes, [S, taps * hidden_size] float32 in the order of layers. Graphs are written to new
    files, and the weights are not touched.

    Args:
        folder: folder of the bundle.
        stages: all stages of a model.
        taps: layers whose entering rows are wanted, ascending; the number of layers stands for the
            rows that enter the last norm.
        hidden_size: size of a row.

    Returns:
        The stages with the new output.

    Raises:
        ExportError: if the graphs do not name these rows, because an older version wrote them.
    """
    left, found = list(taps), []
    for stage in stages:
        model = onnx.load(folder / stage.graph, load_external_data=False)
        made = {name for node in model.graph.node for name in node.output}
        mine = [tap for tap in left if entering(tap) in made]
        left = [tap for tap in left if tap not in mine]
        _remove_features(model)
        outputs = tuple(each for each in stage.outputs if each.name != FEATURES)
        if mine:
            outputs = (*outputs, _add_features(model, mine, hidden_size))
        if outputs != stage.outputs:
            _save(model, folder / stage.graph)
        found.append(replace(stage, outputs=outputs))
    for tap in left:
        require_names((), folder / stages[0].graph, tap)
    return tuple(found)


def add_native_taps(folder: Path, graph: str, taps: Sequence[int], hidden_size: int) -> None:
    """Gives a native graph the output `features`, see `add_taps`."""
    model = onnx.load(folder / graph, load_external_data=False)
    made = {name for node in model.graph.node for name in node.output}
    for tap in taps:
        require_names(made, folder / graph, tap)
    _remove_features(model)
    _add_features(model, taps, hidden_size)
    _save(model, folder / graph)


def require_names(made: Container[str], graph: Path, layer: int) -> None:
    """Checks that a graph names the rows that enter a layer.

    Args:
        made: names of the graph's values.
        graph: its file.
        layer: number of the layer.

    Raises:
        ExportError: if it does not, because an older version wrote it.
    """
    if entering(layer) not in made:
        raise ExportError(
            f"{graph} does not name the rows that enter layer {layer}: it was exported by an older "
            "edgespec, export the checkpoint again"
        )


def _save(model: onnx.ModelProto, file: Path) -> None:
    # A new file, since the old one may have a name in another bundle, too.
    with replaced(file) as partial:
        partial.write_bytes(model.SerializeToString())


def _remove_features(model: onnx.ModelProto) -> None:
    graph = model.graph
    for parts, drop in (
        (graph.node, [node for node in graph.node if node.name == _FEATURES_NODE]),
        (graph.output, [each for each in graph.output if each.name == FEATURES]),
    ):
        for each in drop:
            parts.remove(each)


def _add_features(model: onnx.ModelProto, taps: Sequence[int], hidden_size: int) -> Tensor:
    """Adds the output to a graph, and returns its description."""
    width, rows = len(taps) * hidden_size, [entering(tap) for tap in taps]
    model.graph.node.append(
        helper.make_node("Concat", rows, [FEATURES], name=_FEATURES_NODE, axis=-1)
    )
    model.graph.output.append(
        helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, ["S", width])
    )
    return Tensor(FEATURES, "float32", ("S", str(width)))
