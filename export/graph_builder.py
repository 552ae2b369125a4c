"""Builds ONNX models with external data."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

OPSET = 23
CONTRIB = "com.microsoft"
NATIVE = "edgespec"
"""Domain of our own operators, see `runtime/kernels`."""
# Alignment of large tensors: engines can map aligned data without a copy.
_PAGE = 4096
# For smaller tensors than this (bytes), the padding would waste space.
_LARGE = 1 << 20

OF_BLOCKS, PLACES = "of_blocks", "places"
"""Values of block drafters' graphs: the numbers of the rows of blocks; and where each row of the
call lies among those that read features and, behind these, those of blocks."""
CLUSTERS = "clusters"
"""Value of assistants' graphs: scores of the tokens of chosen clusters."""

Shape = Sequence[int | str]


def entering(layer: int) -> str:
    """Returns the name of the hidden rows that enter a layer, or after the last one the head."""
    return f"entering.{layer}"


class DataFile:
    """A file of external data, written sequentially.

    Args:
        path: the file to create.

    Attributes:
        name: the file's name without its folder.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._file: BinaryIO = path.open("wb")

    def begin(self, nbytes: int) -> int:
        """Pads the file to align a tensor of `nbytes`, and returns the tensor's offset."""
        align = _PAGE if nbytes >= _LARGE else 64
        self._file.write(b"\0" * (-self._file.tell() % align))
        return self._file.tell()

    def write(self, array: npt.NDArray[np.generic]) -> None:
        """Appends the bytes of a C-contiguous array."""
        self._file.write(array.data)

    def flush(self) -> None:
        """Flushes buffers, so that the file can be read."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class GraphBuilder:
    """Collects the nodes, initializers, inputs and outputs of one graph.

    Values are named by strings, as in ONNX; `op` generates the names.
    """

    def __init__(self, name: str, data_name: str) -> None:
        self.name = name
        self._data_name = data_name
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs that are declared so far."""
        return [each.name for each in self._inputs]

    def input(self, name: str, dtype: int, shape: Shape) -> str:
        """Declares a graph input; strings in `shape` are symbolic dimensions."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def output(self, name: str, value: str, dtype: int, shape: Shape) -> None:
        """Makes `value` the graph output `name`."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=f"output/{name}"))
        self._outputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))

    def output_in_place(self, value: str, name: str, dtype: int, shape: Shape) -> str:
        """Makes `value`, an output of the last node, the graph output `name`; returns this name.

        No node lies between, so that it can be bound to the memory of an input.
        """
        outputs = self._nodes[-1].output
        outputs[list(outputs).index(value)] = name
        self._outputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        """Adds a node with one output, and returns the output's name."""
        return self.multi_op(kind, *inputs, outputs=1, domain=domain, unused=(), **attributes)[0]

    def multi_op(
        self,
        kind: str,
        *inputs: str,
        outputs: int,
        domain: str = "",
        unused: Sequence[int] = (),
        **attributes: object,
    ) -> list[str]:
        """Adds a node with several outputs, and returns their names; unused ones have none."""
        self._count += 1
        label = f"{kind}_{self._count}"
        names = [label] if outputs == 1 else [f"{label}:{i}" for i in range(outputs)]
        for number in unused:
            names[number] = ""
        node = helper.make_node(kind, list(inputs), names, name=label, domain=domain, **attributes)
        self._nodes.append(node)
        return names

    def rename(self, value: str, name: str) -> str:
        """Gives the last node's output another name, by which it can be found in the graph."""
        assert list(self._nodes[-1].output) == [value]
        self._nodes[-1].output[0] = name
        return name

    def graft(self, nodes: Sequence[onnx.NodeProto], initializers: Sequence[TensorProto]) -> None:
        """Adds nodes and initializers of another graph, whose names must be new here."""
        self._nodes += nodes
        self._initializers |= {each.name: each for each in initializers}

    def constant(self, values: npt.ArrayLike, dtype: npt.DTypeLike) -> str:
        """Adds a small constant to the graph file itself; equal constants are stored once."""
        array = np.asarray(values, dtype=dtype)
        shape = "x".join(map(str, array.shape)) or "scalar"
        digest = blake2b(array.tobytes(), digest_size=8).hexdigest()
        key = f"const/{array.dtype.name}/{shape}/{digest}"
        if key not in self._initializers:
            self._initializers[key] = onnx.numpy_helper.from_array(array, key)
        return key

    def ints(self, *values: int) -> str:
        """Adds an int64 vector, for shapes and axes."""
        return self.constant(values, np.int64)

    def external(
        self, name: str, dtype: int, shape: Sequence[int], offset: int, nbytes: int
    ) -> str:
        """Declares an initializer in the data file; several may share the same bytes."""
        tensor = TensorProto(name=name, data_type=dtype, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self._data_name), ("offset", offset), ("length", nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        self._initializers[name] = tensor
        return name

    def save(self, path: Path, like: onnx.ModelProto | None = None) -> None:
        """Writes the graph; the external data must lie in the same folder.

        Args:
            path: the file to write.
            like: see `content`.
        """
        path.write_bytes(self.content(like))

    def content(self, like: onnx.ModelProto | None = None) -> bytes:
        """Returns the graph as a file has it.

        Args:
            like: model whose versions of operators, and functions, it needs; None: ours.
        """
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, list(self._initializers.values())
        )
        own = [NATIVE] if any(node.domain == NATIVE for node in self._nodes) else []
        opsets = [helper.make_opsetid("", OPSET)]
        opsets += [helper.make_opsetid(each, 1) for each in (CONTRIB, *own)]
        opsets = opsets if like is None else list(like.opset_import)
        functions = [] if like is None else list(like.functions)
        model = helper.make_model(
            graph, opset_imports=opsets, functions=functions, producer_name="edgespec"
        )
        model.ir_version = 11 if like is None else like.ir_version
        content: bytes = model.SerializeToString()
        return content
