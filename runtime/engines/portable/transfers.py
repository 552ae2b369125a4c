"""What moves between pools on a GPU, and between a pool and the tensors of a call: small graphs.

The write has pools as inputs and outputs at once, bound to the same memory, so that ScatterND
writes the given rows and leaves the others as they are. The read gathers what recurrent layers
want.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from edgespec.bundle.sublayers import pool_parts
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.portable.engine import CallSlots
from edgespec.runtime.engines.portable.file import GraphFile, pool_kind

if TYPE_CHECKING:
    from edgespec.runtime.engines.portable.device import DeviceRunner, Gpu

_INDEX = int(TensorProto.INT64)
# Older than those of model graphs, so that every build that accepts models accepts these.
_OPSET, _IR_VERSION = 21, 10

_NO_WAIT = "disable_synchronize_execution_providers"

Tensors = dict[str, tuple[int, Sequence[int | str]]]
"""Inputs or outputs by name: number of the ONNX element type, and shape."""


class Lists(NamedTuple):
    """A pool: lists of rows, one behind the other, of as many slots each.

    Attributes:
        number: number of lists of a tensor.
        dim: numbers of a row.
        dtype: their type.
        parts: number of tensors, 2 of keys and values.
    """

    number: int
    dim: int
    dtype: np.dtype[Any]
    parts: int = 1


@dataclass(frozen=True, eq=False)
class PoolTensors:
    """Keys and values of a layer as two tensors of a device, which together are like one.

    Attributes:
        keys: [1, kv_heads, slots, dim].
        values: likewise.
    """

    keys: Any
    values: Any

    def shape(self) -> list[int]:
        """Returns the dimensions of both together."""
        return [2, *self.keys.shape()[1:]]

    def element_type(self) -> int:
        """Returns ONNX's number for their type."""
        return int(self.keys.element_type())

    def numpy(self) -> Array:
        """Returns a copy of what they hold."""
        return np.concatenate([self.keys.numpy(), self.values.numpy()])

    def update_inplace(self, whole: Array) -> None:
        """Lets them hold other numbers."""
        for tensor, part in zip((self.keys, self.values), np.split(whole, 2), strict=True):
            tensor.update_inplace(part)


def bound_parts(name: str, pool: Any) -> dict[str, Any]:
    """Returns the tensors of a pool on a device, by the names of a graph's inputs."""
    if isinstance(pool, PoolTensors):
        return dict(zip(pool_parts(name), (pool.keys, pool.values), strict=True))
    return {name: pool}


class Recording:
    """Options of one call's runs: of a GPU that captures, its second run is recorded."""

    _numbers = count(1)

    def __init__(self, gpu: Gpu) -> None:
        self._captures = gpu.captures
        self._runs = 0
        self._options: Any = None

    def next(self, wait: bool = True) -> Any:
        """Returns the options of the next run; of one call, all of them wait or none does."""
        if self._runs < 1 + self._captures:  # many sizes come once only
            options = ort.RunOptions()
            if self._captures:
                number = next(self._numbers) if self._runs else -1
                options.add_run_config_entry("gpu_graph_id", str(number))
            if not wait:
                options.add_run_config_entry(_NO_WAIT, "1")
            self._options = options
            self._runs += 1
        return self._options


class Write:
    """The write of a number of rows to pools, and the tensors that these rows come in.

    Attributes:
        new: by the pool's name, what the call returns.
    """

    def __init__(self, runner: DeviceRunner, pools: Mapping[str, Any], slots: CallSlots) -> None:
        self._gpu = runner.gpu
        self._session = runner.writing
        self._handle = self._session.io_binding()
        self._options = Recording(runner.gpu)
        self.new: dict[str, Any] = {}
        self._places: dict[str, tuple[str, Array, Any]] = {}
        for name in runner.file.written:
            lists = runner.lists[name]
            kind = pool_kind(name)
            rows = len(slots.write[kind])
            length = pools[name].shape()[2]
            self.new[name] = self._gpu.empty(_returned_shape(runner.file, name, rows), lists.dtype)
            # All heads' rows are one list, which fewer kinds of shaders can write to.
            flat = (lists.number * length, lists.dim)
            device = (self._gpu.kind, self._gpu.number, lists.dtype.type)
            for part, tensor in bound_parts(name, pools[name]).items():
                self._handle.bind_input(part, *device, flat, tensor.data_ptr())
                self._handle.bind_output(f"{part}.after", *device, flat, tensor.data_ptr())
            new = (lists.parts * lists.number * rows, lists.dim)
            self._handle.bind_input(f"{name}.new", *device, new, self.new[name].data_ptr())
            places = _places(name, lists)
            if places not in self._places:
                first = length * np.arange(lists.number)[:, None]
                value = self._gpu.empty((lists.number * rows, 1), np.dtype(np.int64))
                self._places[places] = kind, first, value
                self._handle.bind_ortvalue_input(places, value)

    def run(self, slots: CallSlots) -> None:
        """Writes what the call has returned."""
        for kind, first, value in self._places.values():
            value.update_inplace((first + slots.write[kind]).reshape(-1, 1))
        self._gpu.run(self._session, self._handle, self._options.next())


class Read:
    """What recurrent layers read of their pools, for a number of rows.

    Attributes:
        held: by the pool's name, [rows or 1, numbers].
    """

    def __init__(self, runner: DeviceRunner, pools: Mapping[str, Any], slots: CallSlots) -> None:
        self._gpu = runner.gpu
        self._session = runner.reading
        self._handle = self._session.io_binding()
        self._options = Recording(runner.gpu)
        self.held: dict[str, Any] = {}
        self._slots: dict[str, Any] = {}
        for name in runner.file.recurrent:
            dim = runner.lists[name].dim
            kind = pool_kind(name)
            rows = len(slots.read[kind])
            if kind not in self._slots:
                self._slots[kind] = self._gpu.empty((rows,), np.dtype(np.int64))
                self._handle.bind_ortvalue_input(kind, self._slots[kind])
            flat = (pools[name].shape()[2], dim)
            device = (self._gpu.kind, self._gpu.number, np.float32)
            self._handle.bind_input(name, *device, flat, pools[name].data_ptr())
            self.held[name] = self._gpu.empty((rows, dim), np.dtype(np.float32))
            self._handle.bind_ortvalue_output(f"{name}.read", self.held[name])

    def run(self, slots: CallSlots) -> None:
        """Reads what the call will read."""
        for kind, value in self._slots.items():
            value.update_inplace(slots.read[kind])
        self._gpu.run(self._session, self._handle, self._options.next())


def small_graph(nodes: Sequence[Any], inputs: Tensors, outputs: Tensors) -> bytes:
    """Returns the content of an ONNX file of a few nodes, in the order in which they run."""
    described = [
        [helper.make_tensor_value_info(name, *each) for name, each in tensors.items()]
        for tensors in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "small", *described)
    opsets = [helper.make_opsetid(*each) for each in (("", _OPSET), ("com.microsoft", 1))]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
    return bytes(model.SerializeToString())


def writing(pools: Mapping[str, Lists]) -> bytes:
    """Builds the graph that writes rows of all lists to places in the pools, [rows, dim] each."""
    inputs = Tensors()
    outputs = Tensors()
    nodes = []
    for name, lists in pools.items():
        kind = _element(lists.dtype)
        places = _places(name, lists)
        inputs[places] = _INDEX, [places, 1]
        parts = pool_parts(name) if lists.parts > 1 else (name,)
        new = [f"{part}.new" for part in parts]
        if lists.parts > 1:
            inputs[f"{name}.new"] = kind, [f"both of {places}", lists.dim]
            nodes.append(helper.make_node("Split", [f"{name}.new"], new, axis=0, num_outputs=2))
        else:
            inputs[new[0]] = kind, [places, lists.dim]
        for part, rows in zip(parts, new, strict=True):
            inputs[part] = outputs[f"{part}.after"] = kind, [f"slots of {name}", lists.dim]
            node = helper.make_node("ScatterND", [part, places, rows], [f"{part}.after"])
            nodes.append(node)
    return small_graph(nodes, inputs, outputs)


def reading(pools: Mapping[str, Lists]) -> bytes:
    """Builds the graph that reads some slots of each pool."""
    inputs = Tensors()
    outputs = Tensors()
    nodes = []
    for name, lists in pools.items():
        kind = pool_kind(name)
        inputs[kind] = _INDEX, [kind]
        inputs[name] = _element(lists.dtype), [f"slots of {name}", lists.dim]
        outputs[f"{name}.read"] = _element(lists.dtype), [kind, lists.dim]
        nodes.append(helper.make_node("Gather", [name, kind], [f"{name}.read"], axis=0))
    return small_graph(nodes, inputs, outputs)


def growing(dtype: np.dtype[Any]) -> bytes:
    """Builds the graph that appends slots of zeros."""
    inputs: Tensors = {"old": (_element(dtype), ["a", "b", "c", "d"]), "pads": (_INDEX, [8])}
    node = helper.make_node("Pad", ["old", "pads"], ["grown"])
    return small_graph([node], inputs, {"grown": (_element(dtype), ["a", "b", "n", "d"])})


def moving(dtype: np.dtype[Any]) -> bytes:
    """Builds the graph that reads rows of a cache in another order."""
    dims = ["a", "b", "c", "d"]
    inputs: Tensors = {"old": (_element(dtype), dims), "order": (_INDEX, ["c"])}
    node = helper.make_node("Gather", ["old", "order"], ["new"], axis=2)
    return small_graph([node], inputs, {"new": (_element(dtype), dims)})


def lists_of(file: GraphFile, name: str) -> Lists:
    """Returns what is in a pool."""
    if name in file.recurrent:
        return Lists(1, prod(file.recurrent[name]), np.dtype(np.float32))
    pool = file.pools[name]
    return Lists(pool.heads, pool.dim, pool.dtype, parts=2)


def _returned_shape(file: GraphFile, name: str, rows: int) -> tuple[int, ...]:
    """Returns the shape of what a call of so many rows returns for a pool."""
    if name in file.recurrent:
        dims = file.recurrent[name]
        return (rows, *dims) if len(dims) == 1 else dims
    return 2, file.pools[name].heads, rows, file.pools[name].dim


def _places(name: str, lists: Lists) -> str:
    """Returns the name of the input with places in pools of this kind, and of as many lists."""
    return f"places.{pool_kind(name)}.{lists.number}"


def _element(dtype: np.dtype[Any]) -> int:
    return int(helper.np_dtype_to_tensor_dtype(dtype))
