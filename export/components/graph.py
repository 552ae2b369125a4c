"""A thin ONNX graph builder: operators in, one model with external data out."""

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
# Mappable without a copy: engines map external data page by page.
_PAGE = 4096
# Of smaller tensors the padding would count.
_LARGE = 1 << 20

Shape = Sequence[int | str]


class DataFile:
    """External data written front to back while weights stream by.

    Args:
        path: the file to create.

    Attributes:
        name: without its folder.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._file: BinaryIO = path.open("wb")

    def begin(self, nbytes: int) -> int:
        """Pad to an alignment that suits `nbytes` and return the offset of what comes next."""
        align = _PAGE if nbytes >= _LARGE else 64
        self._file.write(b"\0" * (-self._file.tell() % align))
        return self._file.tell()

    def write(self, array: npt.NDArray[np.generic]) -> None:
        """Append the bytes of a C-contiguous array."""
        self._file.write(array.data)

    def flush(self) -> None:
        """Have all of it in the file system, for readers."""
        self._file.flush()

    def close(self) -> None:
        """Nothing follows."""
        self._file.close()


class GraphBuilder:
    """Collects nodes, initializers and boundary tensors of one graph.

    Values are named by strings, as in ONNX; `op` makes up the names.
    """

    def __init__(self, name: str, data_name: str) -> None:
        self.name = name
        self._data_name = data_name
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    def input(self, name: str, dtype: int, shape: Shape) -> str:
        """Declare a graph input; strings in `shape` are symbolic dimensions."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def output(self, name: str, value: str, dtype: int, shape: Shape) -> None:
        """Publish `value` as the graph output `name`."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=f"output/{name}"))
        self._outputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        """Add a node with one output and return the output's name."""
        return self.multi_op(kind, *inputs, outputs=1, domain=domain, **attributes)[0]

    def multi_op(
        self, kind: str, *inputs: str, outputs: int, domain: str = "", **attributes: object
    ) -> list[str]:
        """Add a node with several outputs and return their names."""
        self._count += 1
        label = f"{kind}_{self._count}"
        names = [label] if outputs == 1 else [f"{label}:{i}" for i in range(outputs)]
        node = helper.make_node(kind, list(inputs), names, name=label, domain=domain, **attributes)
        self._nodes.append(node)
        return names

    def constant(self, values: npt.ArrayLike, dtype: npt.DTypeLike) -> str:
        """A small constant kept in the graph itself; equal constants are stored once."""
        array = np.asarray(values, dtype=dtype)
        shape = "x".join(map(str, array.shape)) or "scalar"
        digest = blake2b(array.tobytes(), digest_size=8).hexdigest()
        key = f"const/{array.dtype.name}/{shape}/{digest}"
        if key not in self._initializers:
            self._initializers[key] = onnx.numpy_helper.from_array(array, key)
        return key

    def ints(self, *values: int) -> str:
        """An int64 vector constant: shapes and axes."""
        return self.constant(values, np.int64)

    def external(
        self, name: str, dtype: int, shape: Sequence[int], offset: int, nbytes: int
    ) -> str:
        """Declare an initializer over bytes of the data file; several may share the same bytes."""
        tensor = TensorProto(name=name, data_type=dtype, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self._data_name), ("offset", offset), ("length", nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        self._initializers[name] = tensor
        return name

    def save(self, path: Path) -> None:
        """Write the graph; the external data must lie beside it."""
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, list(self._initializers.values())
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="edgespec")
        model.ir_version = 11
        path.write_bytes(model.SerializeToString())
