"""What a graph of another program takes and gives, and which graphs are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from edgespec.errors import UnsupportedModelError
from edgespec.export.graph_builder import CONTRIB

_OLDEST = 13  # opset since which axes are inputs, as the nodes of `rewrite` have them
_PAST = re.compile(r"past_key_values\.(\d+)\.(key|value)")
_KV_TYPES = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16"}
# These round all rows of a call by one scale, so that a draft would change the text.
_BY_CALL = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul")
CONSTANTS = {"num_logits_to_keep": (0, np.int64), "use_cache_branch": (True, np.bool_)}
"""Inputs that choose what is computed, with the value for all logits of a text with a past."""

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
    known = {"input_ids", "attention_mask", "position_ids", *CONSTANTS, *pasts}
    other = sorted(inputs.keys() - known)
    if other or "input_ids" not in inputs:
        name = other[0] if other else "input_ids"
        what = "has an unknown input" if other else "lacks the input"
        raise UnsupportedModelError(f"{place} {what} {name!r}: {_REMEDY}")
    if not pasts:
        raise UnsupportedModelError(f"{place} has no past_key_values among its inputs: {_REMEDY}")
    layers = len(pasts) // 2
    wanted = {past_name(layer, part) for layer in range(layers) for part in ("key", "value")}
    missing = sorted(
        (wanted | {present_name(name) for name in wanted} | {"logits"}) - _values(model)
    )
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
        for part in branches(node):
            yield from _nodes(part)


def branches(node: NodeProto) -> Iterator[GraphProto]:
    """Yields the graphs that a node chooses from or repeats."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def past_name(layer: int, part: str) -> str:
    """Returns the name of the input that has a layer's keys or values."""
    return f"past_key_values.{layer}.{part}"


def present_name(past: str) -> str:
    """Returns the name of the output that has them with those of the new rows."""
    return past.replace("past_key_values", "present")


def _values(model: ModelProto) -> set[str]:
    return {each.name for each in (*model.graph.input, *model.graph.output)}
