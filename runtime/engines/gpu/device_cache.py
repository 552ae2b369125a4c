"""The KV cache on a GPU, with ONNX Runtime: small graphs that run on the GPU copy its rows.

A graph's input and output are bound to the same tensor, so that ScatterND writes only the given
rows and leaves the others as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.base import StageFile
from edgespec.runtime.engines.ort_session import bind_host_input
from edgespec.runtime.engines.recurrence import Recurrence
from edgespec.runtime.engines.small_graphs import Tensors, small_graph


class Gpu(Protocol):
    """The GPU that holds a cache and runs its graphs."""

    def open(self, graph: bytes) -> Any:
        """Opens a session on the GPU."""

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """Allocates a tensor on the GPU with undefined content."""

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """Allocates a tensor of zeros on the GPU."""

    def run(self, session: Any, binding: Any) -> None:
        """Runs a session with a binding."""


class CacheGraphs:
    """Compiled graphs for the caches of one stage, which all texts share.

    Attributes:
        gpu: the GPU that runs the graphs.
        stage: the stage.
        names: names of the stage's inputs that are its cache.
    """

    def __init__(self, gpu: Gpu, stage: StageFile) -> None:
        self.gpu = gpu
        self.stage = stage
        self.names = list(stage.past)
        if self.names:
            self.write = gpu.open(_scatter_graph(stage, self.names, outside=True))
            self.move = gpu.open(_scatter_graph(stage, self.names, outside=False))
            self.grow = gpu.open(_growth_graph(stage))


class DeviceCache:
    """A KV cache on the GPU: tensors [KV, C, hd], two for each layer.

    Attributes:
        capacity: C, in rows.
        values: tensors by the names of the stage's inputs. It is a new dict after every growth, so
            that an executable can tell by identity whether to bind again.
        recurrence: see `Cache`.
    """

    recurrence: Recurrence | None = None

    def __init__(self, graphs: CacheGraphs, capacity: int) -> None:
        self._graphs = graphs
        self.capacity = capacity
        shape, dtype = self._shape(capacity), graphs.stage.kv_dtype
        # Zeros, since a NaN in a masked row would spoil every logit.
        self.values = {name: graphs.gpu.zeros(shape, dtype) for name in graphs.names}
        self._copies: dict[tuple[bool, int], _Copy] = {}

    def grow(self, capacity: int) -> None:
        """See `Cache`."""
        graphs, added = self._graphs, capacity - self.capacity
        pads = np.array([0, 0, 0, 0, added, 0], np.int64)
        shape, dtype = self._shape(capacity), graphs.stage.kv_dtype
        self._copies.clear()  # they hold the old tensors
        grown = {}
        for name, old in self.values.items():
            grown[name] = graphs.gpu.empty(shape, dtype)
            binding = graphs.grow.io_binding()
            binding.bind_ortvalue_input("past", old)
            bind_host_input(binding, "pads", pads)
            binding.bind_ortvalue_output("grown", grown[name])
            graphs.gpu.run(graphs.grow, binding)
        self.values, self.capacity = grown, capacity

    def write(self, new_kv: object, rows: Sequence[int], start: int) -> None:
        """See `Cache`."""
        if self.values and len(rows):
            self._copy(True, len(rows)).run(rows, start, new_kv)

    def move(self, rows: Sequence[int], start: int) -> None:
        """See `Cache`."""
        stay = 0  # number of rows that are already in their place
        while stay < len(rows) and rows[stay] == start + stay:
            stay += 1
        if self.values and stay < len(rows):
            self._copy(False, len(rows) - stay).run(rows[stay:], start + stay)

    @property
    def row_bytes(self) -> int:
        """See `Cache`."""
        stage = self._graphs.stage
        return math.prod(stage.cache_shape) * np.dtype(stage.kv_dtype).itemsize

    def read(self, rows: int) -> Array:
        """See `Cache`."""
        layers, pair, heads, width = self._graphs.stage.cache_shape
        tensors = [self.values[name].numpy()[:, :rows] for name in self._graphs.names]
        shape = (layers, pair, heads, rows, width)
        return np.array(tensors, self._graphs.stage.kv_dtype).reshape(shape)

    def load(self, rows: Array) -> None:
        """See `Cache`."""
        if not rows.size:
            return
        whole = np.zeros(self._shape(self.capacity), rows.dtype)
        tensors = rows.reshape(-1, *rows.shape[2:])
        for name, tensor in zip(self._graphs.names, tensors, strict=True):
            whole[:, : rows.shape[3]] = tensor
            self.values[name].update_inplace(whole)

    def _copy(self, outside: bool, rows: int) -> _Copy:
        bucket = 1 << (rows - 1).bit_length()  # powers of two, so that there are few bindings
        if (outside, bucket) not in self._copies:
            self._copies[outside, bucket] = _Copy(self._graphs, self.values, outside, bucket)
        return self._copies[outside, bucket]

    def _shape(self, capacity: int) -> tuple[int, int, int]:
        _, _, heads, width = self._graphs.stage.cache_shape
        return (heads, capacity, width)


class _Copy:
    """A graph that copies a fixed number of rows, bound to a cache.

    Args:
        graphs: graphs of the cache's stage.
        values: the cache's tensors.
        outside: whether rows come from a call's `new_kv` instead of the cache itself.
        rows: number of rows to copy; fewer are padded by repeating the last one.
    """

    def __init__(
        self, graphs: CacheGraphs, values: dict[str, Any], outside: bool, rows: int
    ) -> None:
        self._gpu = graphs.gpu
        self._session = graphs.write if outside else graphs.move
        heads = graphs.stage.cache_shape[2]
        self._rows = np.zeros(rows, np.int64)
        # Target indices for each head and row: the head, and the row of the cache.
        self._places = np.zeros((heads, rows, 2), np.int64)
        self._places[:, :, 0] = np.arange(heads)[:, None]
        self._indices = {
            name: (array, graphs.gpu.zeros(array.shape, "int64"))
            for name, array in (("rows", self._rows), ("places", self._places))
        }
        self._binding = self._session.io_binding()
        for name, (_, value) in self._indices.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in values.items():
            self._binding.bind_ortvalue_input(name, value)
            self._binding.bind_ortvalue_output(f"{name}.after", value)

    def run(self, rows: Sequence[int], start: int, new_kv: object = None) -> None:
        """Copies the given rows to the cache rows from `start` on."""
        n = len(rows)
        self._rows[:n] = rows
        self._rows[n:] = rows[-1]
        self._places[:, :, 1] = start + np.minimum(np.arange(len(self._rows)), n - 1)
        for array, value in self._indices.values():
            value.update_inplace(array)
        if new_kv is not None:
            self._binding.bind_ortvalue_input("new_kv", new_kv)
        self._gpu.run(self._session, self._binding)


def _scatter_graph(stage: StageFile, names: Sequence[str], outside: bool) -> bytes:
    """Builds the graph that copies rows to given places in the cache.

    The rows come from `new_kv` [layers, 2, KV, S, hd] if `outside`, else from the cache itself.
    """
    layers, pair, heads, width = stage.cache_shape
    kind, index = _type(stage), int(TensorProto.INT64)
    inputs: Tensors = {"rows": (index, ["n"]), "places": (index, [heads, "n", 2])}
    nodes, constants = [], []
    if outside:
        inputs["new_kv"] = (kind, [layers, pair, heads, "S", width])
        flat = np.array([layers * pair, heads, -1, width], np.int64)
        constants.append(numpy_helper.from_array(flat, "flat"))
        nodes += [
            helper.make_node("Gather", ["new_kv", "rows"], ["taken"], axis=3),
            helper.make_node("Reshape", ["taken", "flat"], ["tensors"]),
        ]
    outputs: Tensors = {}
    for number, name in enumerate(names):
        inputs[name] = outputs[f"{name}.after"] = (kind, [heads, "C", width])
        if outside:
            constants.append(numpy_helper.from_array(np.array(number, np.int64), f"{name}.number"))
            fetch = helper.make_node("Gather", ["tensors", f"{name}.number"], [f"{name}.rows"])
        else:
            fetch = helper.make_node("Gather", [name, "rows"], [f"{name}.rows"], axis=1)
        scattered = [name, "places", f"{name}.rows"]
        nodes += [fetch, helper.make_node("ScatterND", scattered, [f"{name}.after"])]
    return small_graph(nodes, inputs, outputs, constants)


def _growth_graph(stage: StageFile) -> bytes:
    """Builds the graph that appends zero rows to a tensor of the cache."""
    _, _, heads, width = stage.cache_shape
    node, kind = helper.make_node("Pad", ["past", "pads"], ["grown"]), _type(stage)
    inputs: Tensors = {
        "past": (kind, [heads, "C", width]),
        "pads": (int(TensorProto.INT64), [6]),
    }
    return small_graph([node], inputs, {"grown": (kind, [heads, "D", width])})


def _type(stage: StageFile) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(stage.kv_dtype)))
