"""Gives a graph with past and present the inputs and outputs of a stage (docs/graph.md).

The graph's own operators stay as they are. Its masks are made for a text whose past is as long as
its cache, so it gets exactly the rows that are in use: what `attention_bias` shows says how many
these are. Rows of a call must follow one another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from edgespec.bundle import Tensor
from edgespec.errors import UnsupportedModelError
from edgespec.export.components.graph import CONTRIB, GraphBuilder, Shape
from edgespec.export.components.stage import FLOAT, INT64

_OLDEST = 13  # opset since which axes are inputs, as the nodes below have them
_PREFIX = "adopted/"  # of all names of the graph, so that none is like one of ours
_PAST = re.compile(r"past_key_values\.(\d+)\.(key|value)")
# Inputs that choose what is computed, with the value for all logits and for a text with a past.
_CONSTANTS = {"num_logits_to_keep": (0, np.int64), "use_cache_branch": (True, np.bool_)}
_KV_TYPES = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16"}
_MATMULS = ("MatMul", "MatMulNBits")
# These round all rows of a call by one scale, so that a draft would change the text.
_BY_CALL = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul")
_REMEDY = "export it with `optimum-cli export onnx --task text-generation-with-past`"


@dataclass(frozen=True)
class Past:
    """The cache of a graph.

    Attributes:
        layers: number of layers.
        kv_heads: number of key and value heads.
        head_dim: width of a head.
        type: ONNX's number of its data type.
    """

    layers: int
    kv_heads: int
    head_dim: int
    type: int

    @property
    def dtype(self) -> str:
        """Numpy's name of the data type."""
        return _KV_TYPES[self.type]


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


def past_of(model: ModelProto, place: str, head_dim: int) -> Past:
    """Returns the shape of a graph's cache.

    Args:
        model: the graph.
        place: its file, for messages.
        head_dim: width of a head, used where the graph does not state it.

    Raises:
        UnsupportedModelError: if the graph is not a decoder whose past this module understands.
    """
    inputs = {each.name: each.type.tensor_type for each in model.graph.input}
    pasts = {name: each for name, each in inputs.items() if _PAST.fullmatch(name)}
    known = {"input_ids", "attention_mask", "position_ids", *_CONSTANTS, *pasts}
    other = sorted(inputs.keys() - known)
    if other or "input_ids" not in inputs:
        name = other[0] if other else "input_ids"
        what = "has an unknown input" if other else "lacks the input"
        raise UnsupportedModelError(f"{place} {what} {name!r}: {_REMEDY}")
    if not pasts:
        raise UnsupportedModelError(f"{place} has no past_key_values among its inputs: {_REMEDY}")
    layers = len(pasts) // 2
    wanted = {_past(layer, part) for layer in range(layers) for part in ("key", "value")}
    missing = sorted((wanted | {_present(name) for name in wanted} | {"logits"}) - _values(model))
    if missing or len(pasts) != 2 * layers:
        name = missing[0] if missing else sorted(pasts)[-1]
        raise UnsupportedModelError(f"{place} has no {name!r} for each layer: {_REMEDY}")
    found = set()
    for name, each in sorted(pasts.items()):
        sizes = [d.dim_value for d in each.shape.dim]
        if len(sizes) != 4 or not sizes[1] or sizes[2] or each.elem_type not in _KV_TYPES:
            kind = TensorProto.DataType.Name(each.elem_type).lower()
            raise UnsupportedModelError(
                f"{place}: {name} is {kind} with {len(sizes)} dimensions of {sizes}: "
                "only caches in float or float16 of [1, heads, length, width] are supported"
            )
        found.add(Past(layers, sizes[1], sizes[3] or head_dim, each.elem_type))
    if len(found) > 1:
        raise UnsupportedModelError(f"{place}: its layers have caches of different shapes")
    return found.pop()


def check_operators(model: ModelProto, place: str) -> None:
    """Refuses graphs that are too old, or in which a row depends on its neighbours.

    Raises:
        UnsupportedModelError: if the graph is one of these.
    """
    opset = next((each.version for each in model.opset_import if not each.domain), 0)
    if opset < _OLDEST:
        raise UnsupportedModelError(
            f"{place} has opset {opset}: {_OLDEST} is the oldest that is supported, export it again"
        )
    for node in _nodes(model.graph):
        if node.op_type in _BY_CALL:
            raise UnsupportedModelError(
                f"{place} has the operator {node.op_type}, which rounds all rows of a call by one "
                "scale, so that drafts would change the text: use model.onnx or a file in 4 bits"
            )


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
        for name, (value, dtype) in _CONSTANTS.items():
            if name in self._types:
                self._feed(name, g.constant([value] if dtype is np.bool_ else value, dtype))
        for layer in range(past.layers):
            for part in ("key", "value"):
                shape = (past.kv_heads, "C", past.head_dim)
                cached = self.input(f"past.{layer}.{part}", past.type, *shape)
                used = g.op("Slice", cached, g.ints(0), self._length, g.ints(1))
                self._feed(_past(layer, part), g.op("Unsqueeze", used, g.ints(0)))

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
            g.op("Gather", _PREFIX + _present(_past(layer, part)), new, axis=2)
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


def projection(graph: GraphProto) -> NodeProto | None:
    """Returns the node that computes the logits."""
    return next((each for each in graph.node if "logits" in each.output), None)


def quantized(graph: GraphProto) -> Iterator[NodeProto]:
    """Yields the matrix products with quantized weights."""
    return (
        each for each in _nodes(graph) if (each.domain, each.op_type) == (CONTRIB, "MatMulNBits")
    )


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yields all nodes, also those of branches."""
    for node in graph.node:
        yield node
        for part in _branches(node):
            yield from _nodes(part)


def _branches(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _rename(graph: GraphProto) -> None:
    """Puts a prefix before all names of a graph and its branches."""
    for each in (*graph.input, *graph.output, *graph.initializer):
        each.name = _PREFIX + each.name
    for node in graph.node:
        node.name = _PREFIX + node.name if node.name else ""
        for names in (node.input, node.output):
            names[:] = [_PREFIX + name if name else "" for name in names]
        for part in _branches(node):
            _rename(part)


def _past(layer: int, part: str) -> str:
    return f"past_key_values.{layer}.{part}"


def _present(past: str) -> str:
    return past.replace("past_key_values", "present")


def _values(model: ModelProto) -> set[str]:
    return {each.name for each in (*model.graph.input, *model.graph.output)}


def _described(name: str, dtype: int, shape: Shape) -> Tensor:
    kind = onnx.helper.tensor_dtype_to_np_dtype(dtype).name
    return Tensor(name, kind, tuple(map(str, shape)))
