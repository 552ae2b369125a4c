"""Gives a graph with past and present the inputs and outputs of a stage (docs/graph.md).

The graph's own operators stay as they are. Its masks are made for a text whose past is as long as
its cache, so it gets exactly the rows that are in use: what `attention_bias` shows says how many
these are. Rows of a call must follow one another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import GraphProto, ModelProto

from edgespec.bundle import Tensor
from edgespec.export.adopted.signature import CONSTANTS, Past, branches, past_name, present_name
from edgespec.export.components.stage import FLOAT, INT64
from edgespec.export.graph_builder import GraphBuilder, Shape

_PREFIX = "adopted/"  # of all names of the graph, so that none is like one of ours
_MATMULS = ("MatMul", "MatMulNBits")


@dataclass(frozen=True)
class Rewritten:
    """A graph as a stage.

    Attributes:
        graph: the graph, ready to be saved.
        inputs: the stage's inputs, for the manifest.
        outputs: its outputs.
    """

    graph: GraphBuilder
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def rewrite(model: ModelProto, data_name: str, past: Past, vocab_size: int) -> Rewritten:
    """Turns a graph into a stage; `model` is changed.

    Args:
        model: the graph, whose weights are in a file of external data already.
        data_name: name of that file.
        past: the graph's cache.
        vocab_size: number of logits of a row.
    """
    types = {each.name: each.type.tensor_type.elem_type for each in model.graph.input}
    logits = next(each for each in model.graph.output if each.name == "logits")
    _rename(model.graph)
    stage = _Stage(GraphBuilder("target", data_name), types, past)
    stage.emit_inputs()
    rows = stage.graph.op("Min", stage.input("logit_rows", INT64, "R"), stage.last)
    chosen = _choose_rows(model.graph, rows)
    stage.graph.graft(list(model.graph.node), list(model.graph.initializer))
    stage.emit_outputs(
        None if chosen else rows, logits.type.tensor_type.elem_type != FLOAT, vocab_size
    )
    return Rewritten(stage.graph, tuple(stage.inputs), tuple(stage.outputs))


class _Stage:
    """Emits the nodes around a graph.

    Attributes:
        graph: receives the nodes.
        inputs: the stage's inputs so far, for the manifest.
        outputs: its outputs so far.
        last: scalar, the number of the last row of a call that is not padding.
    """

    last: str

    def __init__(self, graph: GraphBuilder, types: dict[str, int], past: Past) -> None:
        self.graph = graph
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self._types = types
        self._past = past

    def input(self, name: str, dtype: int, *shape: str | int) -> str:
        """Declares an input of the stage."""
        self.inputs.append(_described(name, dtype, shape))
        return self.graph.input(name, dtype, shape)

    def emit_inputs(self) -> None:
        """Makes the graph's inputs of the stage's."""
        g, past = self.graph, self._past
        ids = self.input("input_ids", INT64, "S")
        bias = self.input("attention_bias", FLOAT, "S", "C+S")
        seen = g.op("Cast", g.op("Greater", bias, g.constant(-1.0, np.float32)), to=INT64)
        counts = g.op("ReduceSum", seen, g.ints(1), keepdims=0)
        zero, one = g.constant(0, np.int64), g.constant(1, np.int64)
        # The first row sees the cached text and itself, the last one all of the text. Padding rows
        # see themselves.
        length = g.op("Sub", g.op("Gather", counts, zero), one)
        self._end = g.op("ReduceMax", counts, keepdims=0)
        self._length = g.op("Unsqueeze", length, g.ints(0))
        rows = g.op("Sub", self._end, length)
        self.last = g.op("Sub", rows, one)
        fresh = g.op("Slice", ids, g.ints(0), g.op("Unsqueeze", rows, g.ints(0)), g.ints(0))
        self._feed("input_ids", g.op("Unsqueeze", fresh, g.ints(0)))
        if "position_ids" in self._types:
            positions = g.op("Range", length, self._end, one)
            self._feed("position_ids", g.op("Unsqueeze", positions, g.ints(0)))
        if "attention_mask" in self._types:
            ends = g.op("Unsqueeze", self._end, g.ints(0))
            sizes = g.op("Concat", g.ints(1), ends, axis=0)
            ones = onnx.numpy_helper.from_array(np.ones(1, np.int64))
            self._feed("attention_mask", g.op("ConstantOfShape", sizes, value=ones))
        for name, (value, dtype) in CONSTANTS.items():
            if name in self._types:
                self._feed(name, g.constant([value] if dtype is np.bool_ else value, dtype))
        for layer in range(past.layers):
            for part in ("key", "value"):
                shape = (past.kv_heads, "C", past.head_dim)
                cached = self.input(f"past.{layer}.{part}", past.type, *shape)
                used = g.op("Slice", cached, g.ints(0), self._length, g.ints(1))
                self._feed(past_name(layer, part), g.op("Unsqueeze", used, g.ints(0)))

    def emit_outputs(self, rows: str | None, widen: bool, vocab_size: int) -> None:
        """Makes the stage's outputs of the graph's.

        Args:
            rows: [R] the rows to take logits of; None: the graph has no others.
            widen: whether its logits are not float32.
            vocab_size: number of logits of a row.
        """
        g, past = self.graph, self._past
        logits = _PREFIX + "logits"
        if rows is not None:
            logits = g.op("Gather", logits, rows, axis=1)
        if widen:
            logits = g.op("Cast", logits, to=FLOAT)
        self._output("logits", g.op("Squeeze", logits, g.ints(0)), FLOAT, "R", vocab_size)
        # As many rows as the call has, so that shapes are those of other stages.
        count = g.op("Gather", g.op("Shape", "input_ids"), g.constant(0, np.int64))
        one = g.constant(1, np.int64)
        numbers = g.op("Min", g.op("Range", g.constant(0, np.int64), count, one), self.last)
        new = g.op("Add", numbers, self._length)
        parts = [
            g.op("Gather", _PREFIX + present_name(past_name(layer, part)), new, axis=2)
            for layer in range(past.layers)
            for part in ("key", "value")
        ]
        shape = (past.layers, 2, past.kv_heads, "S", past.head_dim)
        stacked = g.op("Concat", *parts, axis=0)
        sizes = (-1 if each == "S" else int(each) for each in shape)
        self._output("new_kv", g.op("Reshape", stacked, g.ints(*sizes)), past.type, *shape)

    def _feed(self, name: str, value: str) -> None:
        """Makes a value the graph's input of this name, in the type that it has there."""
        cast = self.graph.op("Cast", value, to=self._types[name])
        self.graph.rename(cast, _PREFIX + name)

    def _output(self, name: str, value: str, dtype: int, *shape: str | int) -> None:
        self.outputs.append(_described(name, dtype, shape))
        self.graph.output(name, value, dtype, shape)


def _choose_rows(graph: GraphProto, rows: str) -> bool:
    """Lets the output projection multiply only the rows whose logits are wanted.

    Otherwise reading a prompt would compute the logits of each of its tokens.

    Returns:
        Whether the projection was found.
    """
    weights = {each.name for each in graph.initializer}
    for index, node in enumerate(graph.node):
        if _PREFIX + "logits" in node.output:
            if node.op_type not in _MATMULS or node.input[0] in weights:
                return False
            chosen = f"{_PREFIX}chosen rows"
            gather = onnx.helper.make_node("Gather", [node.input[0], rows], [chosen], axis=1)
            node.input[0] = chosen
            graph.node.insert(index, gather)
            return True
    return False


def _rename(graph: GraphProto) -> None:
    """Puts a prefix before all names of a graph and its branches."""
    for each in (*graph.input, *graph.output, *graph.initializer):
        each.name = _PREFIX + each.name
    for node in graph.node:
        node.name = _PREFIX + node.name if node.name else ""
        for names in (node.input, node.output):
            names[:] = [_PREFIX + name if name else "" for name in names]
        for part in branches(node):
            _rename(part)


def _described(name: str, dtype: int, shape: Shape) -> Tensor:
    kind = onnx.helper.tensor_dtype_to_np_dtype(dtype).name
    return Tensor(name, kind, tuple(map(str, shape)))
