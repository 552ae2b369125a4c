"""Tensors of a KV cache on a GPU, with ONNX Runtime: small graphs that run there copy their rows.

A graph's input and output are bound to the same tensor, so that ScatterND writes only the given
rows and leaves the others as they are. The graphs see a tensor as a list of rows, all heads of all
texts one after the other, so that they are the same for one text and for several.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from edgespec.bundle.caches import CacheGroup
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.ort_session import bind_host_input
from edgespec.runtime.engines.small_graphs import Tensors, small_graph
from edgespec.runtime.shapes import kept_rows

_INDEX = int(TensorProto.INT64)


class Gpu(Protocol):
    """The GPU that holds a cache and runs its graphs."""

    def open(self, graph: bytes) -> Any:
        """Opens a session on the GPU."""

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """Allocates a tensor on the GPU with undefined content."""

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """Allocates a tensor of zeros on the GPU."""

    def placed(self, array: Array) -> Any:
        """Copies an array to the GPU."""

    def bind_input(
        self, binding: Any, name: str, tensor: Any, dtype: str, shape: Sequence[int]
    ) -> None:
        """Binds an input to the beginning of a tensor, in another shape."""

    def bind_output(
        self, binding: Any, name: str, tensor: Any, dtype: str, shape: Sequence[int]
    ) -> None:
        """Binds an output to the beginning of a tensor, in another shape."""

    def run(self, session: Any, binding: Any) -> None:
        """Runs a session with a binding."""


@dataclass(frozen=True)
class TextRows:
    """New keys and values of one of a call's texts.

    Attributes:
        tensor: those of all its texts, [layers, 2, KV, S, hd], or [layers * 2 * T, KV, L, hd].
        text: number of the text.
    """

    tensor: Any
    text: int = 0


class GroupGraphs:
    """Compiled graphs for the caches of one group of layers."""

    def __init__(self, gpu: Gpu, group: CacheGroup, by_text: bool) -> None:
        self.gpu, self.group, self.by_text = gpu, group, by_text
        kind = int(helper.np_dtype_to_tensor_dtype(np.dtype(group.dtype)))
        self.write = gpu.open(_scatter_graph(group, kind, outside=True))
        self.move = gpu.open(_scatter_graph(group, kind, outside=False))
        self.grow = gpu.open(_growth_graph(kind, group.head_dim))
        self.pick: Any = gpu.open(_picking_graph(group, kind)) if by_text else None


class DeviceGroup:
    """The tensors of layers that have one shape.

    Attributes:
        values: them, by the names of the stage's inputs.
    """

    def __init__(self, graphs: GroupGraphs, count: int, capacity: int) -> None:
        self.graphs, self._count = graphs, count
        shape = self._shape(count, capacity)
        # Zeros, since a NaN in a masked row would spoil every logit.
        zeros, group = graphs.gpu.zeros, graphs.group
        self.values = {name: zeros(shape, group.dtype) for name in group.names}
        self.rows = shape[-2]
        self._heads = np.arange(group.kv_heads)[:, None]
        self._copies: dict[tuple[bool, int], _Copy] = {}

    def grow(self, capacity: int) -> None:
        """See `Cache`."""
        graphs, group = self.graphs, self.graphs.group
        old_rows, self.rows = self.rows, kept_rows(capacity, group.window)
        if self.rows == old_rows:
            return
        gpu, shape = graphs.gpu, self._shape(self._count, capacity)
        heads = self._count * group.kv_heads
        pads = np.array([0, 0, 0, 0, self.rows - old_rows, 0], np.int64)
        self._copies.clear()  # they hold the old tensors
        for name in group.names:  # one by one, so that only one is there twice
            grown = gpu.empty(shape, group.dtype)
            binding = graphs.grow.io_binding()
            old = self.values.pop(name)
            gpu.bind_input(binding, "past", old, group.dtype, (heads, old_rows, group.head_dim))
            bind_host_input(binding, "pads", pads)
            after = (heads, self.rows, group.head_dim)
            gpu.bind_output(binding, "grown", grown, group.dtype, after)
            gpu.run(graphs.grow, binding)
            self.values[name] = grown

    def write(
        self, text: int, source: TextRows, rows: Sequence[int], places: Sequence[int]
    ) -> None:
        """Copies rows of a call to places of a text."""
        from_rows = self._in_heads(source.text, int(source.tensor.shape()[-2]), rows)
        self._copy(True, len(rows)).run(
            from_rows, self._in_heads(text, self.rows, places), source.tensor
        )

    def move(self, text: int, rows: Sequence[int], places: Sequence[int]) -> None:
        """Copies rows of a text to other places of it."""
        from_rows, to_rows = (self._in_heads(text, self.rows, each) for each in (rows, places))
        self._copy(False, len(rows)).run(from_rows, to_rows)

    def room_for_one(self) -> dict[str, Any]:
        """Allocates tensors of one text, with undefined content."""
        group = self.graphs.group
        shape = (1, group.kv_heads, self.rows, group.head_dim)
        return {name: self.graphs.gpu.empty(shape, group.dtype) for name in group.names}

    def pick(self, text: int, target: dict[str, Any]) -> None:
        """Copies the tensors of one text to others, by name."""
        gpu, group, session = self.graphs.gpu, self.graphs.group, self.graphs.pick
        width = group.kv_heads * self.rows * group.head_dim
        number = np.array([text], np.int64)
        binding = session.io_binding()
        binding.bind_ortvalue_input("text", gpu.placed(number))
        for name, value in self.values.items():
            gpu.bind_input(binding, name, value, group.dtype, (self._count, width))
            gpu.bind_output(binding, f"{name}.one", target[name], group.dtype, (1, width))
        gpu.run(session, binding)

    def read(self, text: int, places: Sequence[int]) -> Array:
        """Returns rows of a text, [layers, 2, KV, rows, hd]."""
        values, group = self.values, self.graphs.group
        if self._count > 1:
            values = self.room_for_one()
            self.pick(text, values)
        one = (group.kv_heads, self.rows, group.head_dim)
        tensors = [values[name].numpy().reshape(one)[:, places] for name in group.names]
        shape = (len(group.layers), 2, group.kv_heads, len(places), group.head_dim)
        return np.array(tensors, group.dtype).reshape(shape)

    def _copy(self, outside: bool, rows: int) -> _Copy:
        bucket = 1 << (rows - 1).bit_length()  # powers of two, so that there are few bindings
        if (outside, bucket) not in self._copies:
            self._copies[outside, bucket] = _Copy(self, outside, bucket)
        return self._copies[outside, bucket]

    def _in_heads(self, text: int, stride: int, rows: Sequence[int]) -> Array:
        """Returns where a text's rows are among those of all heads of all texts, [KV, rows]."""
        first = text * self.graphs.group.kv_heads
        return (self._heads + first) * stride + np.asarray(rows, np.int64)

    def _shape(self, count: int, capacity: int) -> tuple[int, ...]:
        group = self.graphs.group
        one = (group.kv_heads, kept_rows(capacity, group.window), group.head_dim)
        return (count, *one) if self.graphs.by_text else one


class _Copy:
    """A graph that copies a fixed number of rows of all heads, bound to the tensors of a group.

    Args:
        group: the tensors.
        outside: whether rows come from a call's new keys and values instead of the tensors.
        rows: number of rows to copy; fewer are padded by repeating the last one.
    """

    def __init__(self, group: DeviceGroup, outside: bool, rows: int) -> None:
        graphs = group.graphs
        self._graphs = graphs
        self._new_kv: Any = None
        self._session = graphs.write if outside else graphs.move
        layout, gpu = graphs.group, graphs.gpu
        count = rows * layout.kv_heads
        self._indices = {
            name: (array, gpu.zeros(array.shape, "int64"))
            for name, array in (
                ("rows", np.zeros(count, np.int64)),
                ("places", np.zeros((count, 1), np.int64)),
            )
        }
        self._binding = self._session.io_binding()
        for name, (_, value) in self._indices.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in group.values.items():
            shape = (math.prod(value.shape()) // layout.head_dim, layout.head_dim)
            gpu.bind_input(self._binding, name, value, layout.dtype, shape)
            gpu.bind_output(self._binding, f"{name}.after", value, layout.dtype, shape)

    def run(self, rows: Array, places: Array, new_kv: Any = None) -> None:
        """Copies the given rows of each head, [KV, n], to these rows of the tensors."""
        for name, given in (("rows", rows), ("places", places)):
            array, value = self._indices[name]
            by_head, n = array.reshape(len(given), -1), given.shape[1]  # a view
            by_head[:, :n], by_head[:, n:] = given, given[:, -1:]
            value.update_inplace(array)
        if new_kv is not self._new_kv:
            self._new_kv = new_kv  # kept alive: the binding has its address only
            layout = self._graphs.group
            tensors = 2 * len(layout.layers)
            shape = (tensors, math.prod(new_kv.shape()) // tensors // layout.head_dim)
            self._graphs.gpu.bind_input(
                self._binding, "new_kv", new_kv, layout.dtype, (*shape, layout.head_dim)
            )
        self._graphs.gpu.run(self._session, self._binding)


def _scatter_graph(group: CacheGroup, kind: int, outside: bool) -> bytes:
    """Builds the graph that copies rows to given places in the tensors.

    The rows come from `new_kv` [layers * 2, …, hd] if `outside`, else from the tensors themselves,
    [rows, hd] each.
    """
    width = group.head_dim
    inputs: Tensors = {"rows": (_INDEX, ["n"]), "places": (_INDEX, ["n", 1])}
    nodes, constants = [], []
    if outside:
        inputs["new_kv"] = (kind, [len(group.names), "S", width])
        nodes.append(helper.make_node("Gather", ["new_kv", "rows"], ["taken"], axis=1))
    outputs: Tensors = {}
    for number, name in enumerate(group.names):
        inputs[name] = outputs[f"{name}.after"] = (kind, ["R", width])
        if outside:
            constants.append(numpy_helper.from_array(np.array(number, np.int64), f"{name}.number"))
            fetch = helper.make_node("Gather", ["taken", f"{name}.number"], [f"{name}.rows"])
        else:
            fetch = helper.make_node("Gather", [name, "rows"], [f"{name}.rows"], axis=0)
        scattered = [name, "places", f"{name}.rows"]
        nodes += [fetch, helper.make_node("ScatterND", scattered, [f"{name}.after"])]
    return small_graph(nodes, inputs, outputs, constants)


def _growth_graph(kind: int, width: int) -> bytes:
    """Builds the graph that appends zero rows to each head of a tensor."""
    node = helper.make_node("Pad", ["past", "pads"], ["grown"])
    inputs: Tensors = {"past": (kind, ["H", "C", width]), "pads": (_INDEX, [6])}
    return small_graph([node], inputs, {"grown": (kind, ["H", "D", width])})


def _picking_graph(group: CacheGroup, kind: int) -> bytes:
    """Builds the graph that copies the tensors of one text, [1, …] each."""
    inputs: Tensors = {"text": (_INDEX, [1])} | {name: (kind, ["T", "N"]) for name in group.names}
    outputs: Tensors = {f"{name}.one": (kind, [1, "N"]) for name in group.names}
    nodes = [
        helper.make_node("Gather", [name, "text"], [f"{name}.one"], axis=0) for name in group.names
    ]
    return small_graph(nodes, inputs, outputs)
