"""The KV cache on a GPU, with ONNX Runtime: small graphs that run on the GPU copy its rows.

A graph's input and output are bound to the same tensor, so that ScatterND writes only the given
rows and leaves the others as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from edgespec.bundle.caches import CacheGroup
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.base import StageFile
from edgespec.runtime.engines.grouped import GroupedCache
from edgespec.runtime.engines.held import Held
from edgespec.runtime.engines.ort_session import bind_host_input
from edgespec.runtime.engines.recurrence import Recurrence
from edgespec.runtime.engines.small_graphs import Tensors, small_graph
from edgespec.runtime.shapes import kept_rows


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

    Args:
        gpu: the GPU that runs the graphs.
        stage: the stage.
    """

    def __init__(self, gpu: Gpu, stage: StageFile) -> None:
        self.groups = [_GroupGraphs(gpu, group) for group in stage.cache_groups]


class _GroupGraphs:
    """Compiled graphs for the caches of one group of layers."""

    def __init__(self, gpu: Gpu, group: CacheGroup) -> None:
        self.gpu, self.group = gpu, group
        kind = int(helper.np_dtype_to_tensor_dtype(np.dtype(group.dtype)))
        self.write = gpu.open(_scatter_graph(group, kind, outside=True))
        self.move = gpu.open(_scatter_graph(group, kind, outside=False))
        self.grow = gpu.open(_growth_graph(group, kind))


class DeviceCache(GroupedCache["_DeviceGroup"]):
    """A KV cache on the GPU: tensors [KV, C, hd], two for each layer.

    Attributes:
        capacity: C, in rows of a group that keeps them all.
        values: tensors by the names of the stage's inputs. It is a new dict after every growth, so
            that an executable can tell by identity whether to bind again.
        recurrence: see `Cache`.
    """

    recurrence: Recurrence | None = None

    def __init__(self, graphs: CacheGraphs, capacity: int) -> None:
        self.capacity = capacity
        super().__init__([_DeviceGroup(each, capacity) for each in graphs.groups])
        self.values = self._all_values()

    def grow(self, capacity: int) -> None:
        """See `Cache`."""
        self.capacity = capacity
        for group in self._groups:
            group.grow(capacity)
        self.values = self._all_values()

    def move(self, rows: Sequence[int], start: int) -> None:
        """See `Cache`."""
        stay = 0  # number of rows that are already in their place
        while stay < len(rows) and rows[stay] == start + stay:
            stay += 1
        if stay < len(rows):
            super().move(rows[stay:], start + stay)

    def _all_values(self) -> dict[str, Any]:
        return {name: each for group in self._groups for name, each in group.values.items()}


class _DeviceGroup:
    """The cache of layers whose tensors have one shape."""

    def __init__(self, graphs: _GroupGraphs, capacity: int) -> None:
        self._graphs = graphs
        self.held = Held(graphs.group.window)
        # Zeros, since a NaN in a masked row would spoil every logit.
        group, shape = graphs.group, self._shape(capacity)
        self.values = {name: graphs.gpu.zeros(shape, group.dtype) for name in group.names}
        self._copies: dict[tuple[bool, int], _Copy] = {}

    def grow(self, capacity: int) -> None:
        graphs, (_, old_rows, _), shape = self._graphs, self._old_shape(), self._shape(capacity)
        if shape[1] == old_rows:
            return
        pads = np.array([0, 0, 0, 0, shape[1] - old_rows, 0], np.int64)
        self._copies.clear()  # they hold the old tensors
        grown = {}
        for name, old in self.values.items():
            grown[name] = graphs.gpu.empty(shape, graphs.group.dtype)
            binding = graphs.grow.io_binding()
            binding.bind_ortvalue_input("past", old)
            bind_host_input(binding, "pads", pads)
            binding.bind_ortvalue_output("grown", grown[name])
            graphs.gpu.run(graphs.grow, binding)
        self.values = grown

    def write(self, new_kv: object, rows: Sequence[int], start: int) -> None:
        if len(rows):
            places = self.held.places(start, len(rows))
            self._copy(True, len(rows)).run(rows, places, new_kv)
            self.held.extend(start + len(rows))

    def move(self, rows: Sequence[int], start: int) -> None:
        from_places = [self.held.place(row) for row in rows]
        self._copy(False, len(rows)).run(from_places, self.held.places(start, len(rows)))

    def bytes_at(self, capacity: int) -> int:
        group = self._graphs.group
        return kept_rows(capacity, group.window) * group.row_bytes

    def read(self, length: int, start: int) -> Array:
        first = max(self.held.first, start)
        places = self.held.places(first, max(length - first, 0))
        group = self._graphs.group
        tensors = [self.values[name].numpy()[:, places] for name in group.names]
        shape = (len(group.layers), 2, group.kv_heads, len(places), group.head_dim)
        return np.array(tensors, self._graphs.group.dtype).reshape(shape)

    def load(self, rows: Array, length: int) -> None:
        count = rows.shape[3]
        self.held.first = length - count
        if not count:
            return
        whole = np.zeros(self._old_shape(), rows.dtype)
        places = self.held.places(length - count, count)
        tensors = rows.reshape(-1, *rows.shape[2:])
        for name, tensor in zip(self._graphs.group.names, tensors, strict=True):
            whole[:, places] = tensor
            self.values[name].update_inplace(whole)

    def _copy(self, outside: bool, rows: int) -> _Copy:
        bucket = 1 << (rows - 1).bit_length()  # powers of two, so that there are few bindings
        if (outside, bucket) not in self._copies:
            self._copies[outside, bucket] = _Copy(self._graphs, self.values, outside, bucket)
        return self._copies[outside, bucket]

    def _old_shape(self) -> tuple[int, int, int]:
        heads, rows, width = next(iter(self.values.values())).shape()
        return int(heads), int(rows), int(width)

    def _shape(self, capacity: int) -> tuple[int, int, int]:
        group = self._graphs.group
        return group.kv_heads, kept_rows(capacity, group.window), group.head_dim


class _Copy:
    """A graph that copies a fixed number of rows, bound to a cache.

    Args:
        graphs: graphs of the cache's group.
        values: the cache's tensors.
        outside: whether rows come from a call's `new_kv` instead of the cache itself.
        rows: number of rows to copy; fewer are padded by repeating the last one.
    """

    def __init__(
        self, graphs: _GroupGraphs, values: dict[str, Any], outside: bool, rows: int
    ) -> None:
        self._gpu = graphs.gpu
        self._session = graphs.write if outside else graphs.move
        heads = graphs.group.kv_heads
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

    def run(self, rows: Sequence[int], places: Sequence[int], new_kv: object = None) -> None:
        """Copies the given rows to these rows of the cache."""
        n = len(rows)
        self._rows[:n], self._rows[n:] = rows, rows[-1]
        self._places[:, :n, 1], self._places[:, n:, 1] = places, places[-1]
        for array, value in self._indices.values():
            value.update_inplace(array)
        if new_kv is not None:
            self._binding.bind_ortvalue_input("new_kv", new_kv)
        self._gpu.run(self._session, self._binding)


def _scatter_graph(group: CacheGroup, kind: int, outside: bool) -> bytes:
    """Builds the graph that copies rows to given places in the cache.

    The rows come from `new_kv` [layers, 2, KV, S, hd] if `outside`, else from the cache itself.
    """
    layers, pair, heads, width = len(group.layers), 2, group.kv_heads, group.head_dim
    index = int(TensorProto.INT64)
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
    for number, name in enumerate(group.names):
        inputs[name] = outputs[f"{name}.after"] = (kind, [heads, "C", width])
        if outside:
            constants.append(numpy_helper.from_array(np.array(number, np.int64), f"{name}.number"))
            fetch = helper.make_node("Gather", ["tensors", f"{name}.number"], [f"{name}.rows"])
        else:
            fetch = helper.make_node("Gather", [name, "rows"], [f"{name}.rows"], axis=1)
        scattered = [name, "places", f"{name}.rows"]
        nodes += [fetch, helper.make_node("ScatterND", scattered, [f"{name}.after"])]
    return small_graph(nodes, inputs, outputs, constants)


def _growth_graph(group: CacheGroup, kind: int) -> bytes:
    """Builds the graph that appends zero rows to a tensor of the cache."""
    heads, width = group.kv_heads, group.head_dim
    node = helper.make_node("Pad", ["past", "pads"], ["grown"])
    inputs: Tensors = {
        "past": (kind, [heads, "C", width]),
        "pads": (int(TensorProto.INT64), [6]),
    }
    return small_graph([node], inputs, {"grown": (kind, [heads, "D", width])})
