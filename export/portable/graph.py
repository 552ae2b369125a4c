"""Lowers a native graph to standard operators, node by node.

A pass of the portable graph writes nothing: it reads the pool, gets what each row sees as a bias,
and returns the rows' new keys and values, see docs/graph.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from edgespec.bundle import OWN_FEATURES, READS_TARGET, SIGHT, TARGET_FEATURES
from edgespec.bundle.options import GraphForm
from edgespec.errors import InputError
from edgespec.export.graph_builder import (
    CONTRIB,
    NATIVE,
    OF_BLOCKS,
    PLACES,
    DataFile,
    GraphBuilder,
)
from edgespec.export.portable.attention import StandardAttention
from edgespec.export.portable.experts import lower_expert_linear
from edgespec.export.portable.fused import FusedAttention, fusible_pools
from edgespec.export.portable.fused_states import FusedGatedDelta, FusedStateSpace
from edgespec.export.portable.halves import write_halves
from edgespec.export.portable.lowering import Lowering, attributes, dims_of, silu
from edgespec.export.portable.recurrent import lower_short_conv
from edgespec.export.portable.states import StandardGatedDelta, StandardStateSpace
from edgespec.system.files import sync_file

GRAPH, DATA = "portable.onnx", "portable.data"
"""Files of a portable graph and of its weights."""
HALVES, HALVES_DATA = "halves.onnx", "halves.data"
"""Likewise of its form in half precision, which has levels of weights in `DATA`, too."""
VERSION = 12
"""Raised by whoever changes what `lower` writes, so that graphs in caches are made again."""

# Inputs of the native graph that tell which rows a row follows, and where it is kept.
_REPLACED = (
    *("write", "parent", "sequence", "context", "starts", SIGHT),
    *("recent_write", "recent", "recent_starts", "carry"),
)
_SLOPES = 15  # number of the first input of TreeAttention that is about distances
_FOLLOWING = ("GatedDelta", "ShortConv", "StateSpace", "TreeAttention")  # operators that read them
_POOLS = ("pool.", "scales.", "rows.", "states.")  # declared by who reads them


def lower(graph: Path, destination: Path, form: GraphForm, part: bytes | None = None) -> None:
    """Writes the portable form of a native graph.

    Args:
        graph: the native graph, beside the file of its tiles.
        destination: folder to make, of the files `GRAPH` and `DATA`. It appears when all is
            written, and stays as it is if it is there already.
        form: what it is made of; for `halves` see `write_halves`.
        part: content of a part of the graph, which is written instead of all of it.

    Raises:
        InputError: if the graph has operators that only CPUs have.
        OSError: if the destination cannot be written.
    """
    whole = onnx.load(graph, load_external_data=False)
    native = whole if part is None else onnx.load_from_string(part)
    _check(native.graph)
    with tempfile.TemporaryDirectory(prefix=".edgespec-", dir=destination.parent) as folder:
        partial = Path(folder) / "portable"
        partial.mkdir()
        data = DataFile(partial / DATA)
        try:
            builder = GraphBuilder(native.graph.name, DATA)
            low = Lowering(native.graph, graph.parent, builder, data, form)
            if form.fused is not None:
                low.apart = _read_by_units_alone(native.graph)
                low.in_order = fusible_pools(low, native.graph, whole.graph)
            _emit(low, native.graph)
        finally:
            data.close()
        builder.save(partial / GRAPH)
        if form.half is None and form.fuses("halves"):
            write_halves(partial / GRAPH, partial / HALVES, partial / HALVES_DATA)
        for each in partial.iterdir():  # a power cut must not leave half a file in a cache
            sync_file(each)
        try:
            partial.rename(destination)
        except OSError:
            if not destination.is_dir():  # otherwise another process was faster
                raise


def _check(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if node.domain == NATIVE and node.op_type not in _OPERATORS:
            raise InputError(
                f"it has a {node.op_type}, which the CPU alone can run: load the model with device "
                "cpu"
            )
        if node.op_type == "TreeAttention" and any(node.input[_SLOPES:]):
            raise InputError(
                "its attention scores by distance, which the CPU alone can: use device cpu"
            )


def _emit(low: Lowering, graph: onnx.GraphProto) -> None:
    makers = {name: node for node in graph.node for name in node.output}
    needed = _needed([each.name for each in graph.output], makers)
    for each in graph.input:
        if each.name in needed and not each.name.startswith(_POOLS):
            kind = each.type.tensor_type
            dims = dims_of(each)
            rows = "S" if each.name in (TARGET_FEATURES, OWN_FEATURES) else dims[0]
            low.graph.input(each.name, kind.elem_type, [rows, *dims[1:]])
            if isinstance(dims[-1], int):
                low.widths[each.name] = dims[-1]
    outputs = {each.name: each for each in graph.output}
    for node in graph.node:
        if needed.isdisjoint(node.output):
            continue
        if parts := _joined(node, makers):
            low.keep(node.output[0], _by_row(low, *(low.value(part) for part in parts)))
            if parts[-1] in low.widths:
                low.widths[node.output[0]] = low.widths[parts[-1]]
        elif node.domain == NATIVE:
            low.keep(node.output[0], _OPERATORS[node.op_type](low, node))
        elif node.op_type == "Add" and low.are_rows(*node.input):
            low.keep(node.output[0], low.sum_of(*(low.value(each) for each in node.input)))
            low.widths[node.output[0]] = low.widths[node.input[0]]
        else:
            low.copy(node)
        if node.output[0] in outputs:
            info = outputs[node.output[0]]
            kind = info.type.tensor_type.elem_type
            low.graph.output(info.name, low.value(node.output[0]), kind, dims_of(info))


def _read_by_units_alone(graph: onnx.GraphProto) -> set[str]:
    """Returns the values that gated units read, and nothing else does."""
    read = {name: node.op_type for node in graph.node for name in node.input}
    others = {n for node in graph.node if node.op_type != "GatedUnit" for n in node.input}
    return {name for name, kind in read.items() if kind == "GatedUnit"} - others


def _joined(node: NodeProto, makers: Mapping[str, NodeProto]) -> list[str]:
    """Returns the values that a node of a head joins; none if it does something else.

    Here each of them has all rows of the call: of two, the first is of those that read features of
    the target. So sizes of calls depend on the number of rows alone.
    """
    if node.op_type == "Concat" and OWN_FEATURES in node.input:
        return list(node.input)
    indices = node.input[1] if node.op_type == "Gather" else ""
    if indices == PLACES:
        return list(makers[node.input[0]].input)
    return [node.input[0]] if indices == OF_BLOCKS else []


def _by_row(low: Lowering, first: str, second: str = "") -> str:
    if not second:
        return first
    g = low.graph
    if READS_TARGET not in g.inputs:
        g.input(READS_TARGET, TensorProto.BOOL, ["S"])
    return g.op("Where", g.op("Unsqueeze", READS_TARGET, g.ints(1)), first, second)


def _needed(outputs: Iterable[str], makers: Mapping[str, NodeProto]) -> set[str]:
    """Returns the names of all that the portable graph needs of the native one."""
    needed = set[str]()
    waiting = [*outputs]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            node = makers.get(name, NodeProto())
            waiting += _joined(node, makers) or [
                each
                for each in node.input
                if node.op_type not in _FOLLOWING or each not in _REPLACED
            ]
    return needed


def _linear(low: Lowering, node: NodeProto) -> str:
    g = low.graph
    own = attributes(node)
    x, bias, residual = (low.value(name) for name in node.input[:3])
    matrices = low.matrices(node, 3)
    columns = own["columns"]
    width = low.width(node.input[0], matrices[0])
    low.widths[node.output[0]] = sum(columns)
    factor = own.get("factor", 1.0)
    cap = own.get("soft_cap", 0.0)
    fused = low.form.fused is not None
    plain = not bias and not residual and factor == 1 and not cap
    if node.output[0] in low.apart and plain and len(matrices) == 2 and columns[0] == columns[1]:
        gate, up = (low.weights.linear(x, [each], width) for each in matrices)
        low.shared["gate", node.output[0]] = gate
        return up
    y = low.weights.linear(x, matrices, width, bias, fused)
    if factor != 1 or cap:
        y = g.op("Mul", y, g.constant(factor / (cap or 1.0), np.float32))
    if cap:
        y = g.op("Mul", g.op("Tanh", y), g.constant(cap, np.float32))
    return low.sum_of(residual, y) if residual else y


def _embedding(low: Lowering, node: NodeProto) -> str:
    own = attributes(node)
    low.widths[node.output[0]] = own["width"]
    matrix = low.matrix(node.input[1], own["format"], own["columns"])
    return low.weights.rows(low.value(node.input[0]), matrix, own["width"])


def _gated(low: Lowering, node: NodeProto) -> str:
    g = low.graph
    own = attributes(node)
    if node.input[0] in low.widths:
        low.widths[node.output[0]] = low.widths[node.input[0]] // 2
    up = low.value(node.input[0])
    gate = low.shared.get(("gate", node.input[0]))
    if gate is None:
        gate, up = g.multi_op("Split", up, outputs=2, axis=-1, num_outputs=2)
    if own["activation"] == "gelu_tanh":
        return g.op("Mul", g.op("Gelu", gate, approximate="tanh"), up)
    if own["activation"] == "silu":
        return g.op("Mul", silu(low, gate), up)
    limit = g.constant(own["limit"], np.float32)
    gate = g.op("Min", gate, limit)
    up = g.op("Clip", up, g.constant(-own["limit"], np.float32), limit)
    steep = g.op("Mul", gate, g.constant(own["alpha"], np.float32))
    gate = g.op("Mul", gate, g.op("Sigmoid", steep))
    return g.op("Mul", gate, g.op("Add", up, g.constant(1, np.float32)))


def _attention(low: Lowering, node: NodeProto) -> str:
    kind = FusedAttention if node.input[3] in low.in_order else StandardAttention
    return kind(low, node).emitted()


def _gated_delta(low: Lowering, node: NodeProto) -> str:
    fused = FusedGatedDelta(low, node)
    return (fused if fused.fits() else StandardGatedDelta(low, node)).emitted()


def _state_space(low: Lowering, node: NodeProto) -> str:
    fused = FusedStateSpace(low, node)
    return (fused if fused.fits() else StandardStateSpace(low, node)).emitted()


def _norm(low: Lowering, node: NodeProto) -> str:
    x, *weights = node.input
    if x in low.widths:
        low.widths[node.output[0]] = low.widths[x]
    summed = low.parts_of_sum(x) if len(weights) == 1 else None
    parts = [low.value(name) for name in weights]
    epsilon = attributes(node)["epsilon"]
    if summed is None:
        kind = "LayerNormalization" if len(weights) > 1 else "RMSNormalization"
        return low.graph.op(kind, low.value(x), *parts, axis=-1, epsilon=epsilon)
    normed, *_, total = low.graph.multi_op(
        "SkipSimplifiedLayerNormalization",
        *summed,
        *parts,
        outputs=4,
        unused=(1, 2),
        domain=CONTRIB,
        epsilon=epsilon,
    )
    low.keep(x, total)
    return normed


def _moments(low: Lowering, node: NodeProto) -> str:
    g = low.graph
    x = low.value(node.input[0])
    mean = g.op("ReduceMean", x, g.ints(-1))
    apart = g.op("Sub", x, mean)
    variance = g.op("ReduceMean", g.op("Mul", apart, apart), g.ints(-1))
    least = g.constant(attributes(node)["epsilon"], np.float32)
    return g.op("Concat", mean, g.op("Sqrt", g.op("Add", variance, least)), axis=-1)


def _softmax(low: Lowering, node: NodeProto) -> str:
    return low.graph.op("Softmax", low.value(node.input[0]), axis=-1)


def _sigmoid(low: Lowering, node: NodeProto) -> str:
    return low.graph.op("Sigmoid", low.value(node.input[0]))


_OPERATORS: Mapping[str, Callable[[Lowering, NodeProto], str]] = {
    "BlockEmbedding": _embedding,
    "BlockLinear": _linear,
    "ExpertLinear": lower_expert_linear,
    "GatedDelta": _gated_delta,
    "GatedUnit": _gated,
    "Moments": _moments,
    "Norm": _norm,
    "ShortConv": lower_short_conv,
    "Sigmoid": _sigmoid,
    "Softmax": _softmax,
    "StateSpace": _state_space,
    "TreeAttention": _attention,
}
