"""What a graph of another program takes and gives, which graphs are refused, and their weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto
from onnx.external_data_helper import ExternalDataInfo

from edgespec.errors import CheckpointError, UnsupportedModelError, reason

_OLDEST = 13  # opset; older ones are not tested
_PAST = re.compile(r"past_key_values\.(\d+)\.(key|value)")
_KV = {TensorProto.FLOAT: "fp32", TensorProto.FLOAT16: "fp16"}
# These round all rows of a call by one scale, so that a draft would change the text.
_BY_CALL = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul")
# Inputs that choose what is computed, with the value for all logits of a text with a past.
_CONSTANTS = {"num_logits_to_keep": np.array(0), "use_cache_branch": np.array([True])}
_PRODUCTS = ("MatMul", "MatMulNBits")
_SMALL = 1024  # bytes; smaller tensors stay in the graph, where engines read shapes from them
_PAGE = 4096  # of memory: aligned weights can be mapped

_REMEDY = "export it with `optimum-cli export onnx --task text-generation-with-past`"


@dataclass(frozen=True)
class Past:
    """The cache of a graph: `layers` of `kv_heads` of `head_dim` numbers, fp32 or fp16 (`kv`)."""

    layers: int
    kv_heads: int
    head_dim: int
    kv: str


def read_graph(file: Path) -> ModelProto:
    """Reads a graph without its external data.

    Raises:
        CheckpointError: if it is no ONNX model.
        UnsupportedModelError: if it is too old, or a row depends on its neighbours.
    """
    try:
        model = onnx.load(file, load_external_data=False)
    except Exception as error:  # its type depends on how protobuf was built
        raise CheckpointError(
            f"{file} is not an ONNX model ({reason(error)}): download it again"
        ) from error
    opset = next((each.version for each in model.opset_import if not each.domain), 0)
    if opset < _OLDEST:
        raise UnsupportedModelError(
            f"{file} has opset {opset}: {_OLDEST} is the oldest that is supported, export it again"
        )
    for node in nodes(model.graph):
        if node.op_type in _BY_CALL:
            raise UnsupportedModelError(
                f"{file} has the operator {node.op_type}, which rounds all rows of a call by one "
                "scale, so that drafts would change the text: use model.onnx or a file in 4 bits"
            )
    return model


def past_of(model: ModelProto, file: Path, head_dim: int) -> Past:
    """Returns the shape of a graph's cache.

    Args:
        model: the graph.
        file: where it is from, for messages.
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
        raise UnsupportedModelError(f"{file} {what} {name!r}: {_REMEDY}")
    if not pasts:
        raise UnsupportedModelError(f"{file} has no past_key_values among its inputs: {_REMEDY}")
    layers = len(pasts) // 2
    wanted = {f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")}
    needed = {f"{kind}.{each}" for kind in ("past_key_values", "present") for each in wanted}
    given = {each.name for each in (*model.graph.input, *model.graph.output)}
    missing = sorted((needed | {"logits"}) - given)
    if missing or len(pasts) != 2 * layers:
        name = missing[0] if missing else sorted(pasts)[-1]
        raise UnsupportedModelError(f"{file} has no {name!r} for each layer: {_REMEDY}")
    found = set()
    for name, each in sorted(pasts.items()):
        sizes = [d.dim_value for d in each.shape.dim]
        if len(sizes) != 4 or not sizes[1] or sizes[2] or each.elem_type not in _KV:
            kind = TensorProto.DataType.Name(each.elem_type).lower()
            raise UnsupportedModelError(
                f"{file}: {name} is {kind} with {len(sizes)} dimensions of {sizes}: "
                "only caches in float or float16 of [1, heads, length, width] are supported"
            )
        found.add(Past(layers, sizes[1], sizes[3] or head_dim, _KV[each.elem_type]))
    if len(found) > 1:
        raise UnsupportedModelError(f"{file}: its layers have caches of different shapes")
    return found.pop()


def nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yields all nodes, also those of graphs that a node chooses from or repeats."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for part in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from nodes(part)


def projection(graph: GraphProto) -> NodeProto | None:
    """Returns the node that computes the logits."""
    return next((each for each in graph.node if "logits" in each.output), None)


def prepare(graph: GraphProto) -> None:
    """Makes constants of inputs that choose what is computed, and lets rows be chosen.

    The output projection multiplies the rows `logit_rows` [R] alone where that is possible;
    otherwise reading a prompt would compute the logits of each of its tokens.
    """
    for each in [each for each in graph.input if each.name in _CONSTANTS]:
        graph.input.remove(each)
        graph.initializer.append(onnx.numpy_helper.from_array(_CONSTANTS[each.name], each.name))
    last = projection(graph)
    weights = {each.name for each in graph.initializer}
    if last is None or last.op_type not in _PRODUCTS or last.input[0] in weights:
        return
    rows = onnx.helper.make_tensor_value_info("logit_rows", TensorProto.INT64, ["R"])
    graph.input.append(rows)
    names = [last.input[0], rows.name], ["chosen_rows"]
    graph.node.insert(list(graph.node).index(last), onnx.helper.make_node("Gather", *names, axis=1))
    last.input[0] = "chosen_rows"


def move_weights(graph: GraphProto, folder: Path, file: Path) -> None:
    """Makes all larger tensors external data of one file; their values stay as they are.

    Args:
        graph: the graph, changed in place.
        folder: folder of the ONNX file that it is from.
        file: the file to write.

    Raises:
        CheckpointError: if external data is missing, too short, or outside that folder.
    """
    with file.open("wb") as data:
        for tensor in graph.initializer:
            if tensor.data_location == TensorProto.EXTERNAL:
                values = _mapped(tensor, folder)
            elif len(tensor.raw_data) >= _SMALL:  # ONNX has another form for a few values
                values = np.frombuffer(tensor.raw_data, np.uint8)
            else:
                continue
            data.write(b"\0" * (-data.tell() % _PAGE))
            info = {"location": file.name, "offset": data.tell(), "length": len(values)}
            values.tofile(data)
            tensor.ClearField("raw_data")
            tensor.ClearField("external_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in info.items():
                tensor.external_data.add(key=key, value=str(value))


def _mapped(tensor: TensorProto, folder: Path) -> np.typing.NDArray[np.uint8]:
    """Returns the bytes of a tensor's external data, mapped."""
    said = ExternalDataInfo(tensor)
    name = said.location
    start = said.offset or 0
    place = PurePosixPath(name)
    if not name or place.is_absolute() or ".." in place.parts or any(c in name for c in "\\:"):
        raise CheckpointError(
            f"{folder}: {tensor.name} has its data in {name!r}, outside the folder: do not use it"
        )
    file = folder / name
    if not file.is_file():
        raise CheckpointError(f"{file} is missing, which has {tensor.name}: download it again")
    size = file.stat().st_size
    length = said.length or size - start
    if not 0 <= start <= start + length <= size:
        raise CheckpointError(
            f"{file} has {size} bytes, {tensor.name} needs {start + length}: download it again"
        )
    if not length:
        return np.empty(0, np.uint8)
    return np.memmap(file, np.uint8, "r", start, (length,))
