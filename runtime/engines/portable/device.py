"""Portable graphs on GPUs of ONNX Runtime's: pools stay there, and new rows are written there.

The write is a small graph whose pools are inputs and outputs at once, bound to the same memory, so
that ScatterND writes the given rows and leaves the others as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from edgespec.runtime.arrays import Array, Floats, Ids
from edgespec.runtime.engines.ort_session import (
    bind_host_input,
    bind_host_output,
    open_wholly,
    session_options,
)
from edgespec.runtime.engines.portable.cpu import failures_of, fixed_options
from edgespec.runtime.engines.portable.engine import FEW_ROWS
from edgespec.runtime.engines.portable.file import GraphFile, PoolInput, Shape
from edgespec.runtime.engines.portable.places import Cache, cache_tensors

_INDEX = int(TensorProto.INT64)
# Older than those of model graphs, so that every build that accepts models accepts these.
_OPSET, _IR_VERSION = 21, 10

_Made = TypeVar("_Made")

Tensors = dict[str, tuple[int, Sequence[int | str]]]
"""Inputs or outputs by name: number of the ONNX element type, and shape."""


class Gpu(ABC):
    """A GPU that an execution provider of ONNX Runtime's runs on.

    Attributes:
        provider: name of the execution provider.
        kind: ONNX Runtime's name for the memory of such devices.
        number: number of the device.
        captures: whether its sessions record what a call launches, and launch it at once in later
            calls of the same size.
    """

    name: str
    hardware: str
    version: str
    own_bytes: int | None
    provider: str
    kind: str
    number = 0
    rows = FEW_ROWS
    shape = None
    half: bool | None = None
    fused: frozenset[str] | None = None
    fused_rows: int = FEW_ROWS[-1]
    captures = False

    def open(self, file: GraphFile, threads: int, shape: Shape | None) -> DeviceRunner:
        """See `Engine`."""
        options = fixed_options(file, 1, shape)
        places = _of_sizes(file.model.graph)
        return DeviceRunner(self, file, self.session(file.path, options, places))

    def session(self, graph: Path | bytes, options: Any, places: Collection[str] = ()) -> Any:
        """Opens a session whose computing nodes all run on this device.

        Args:
            graph: path of an ONNX file, or its content.
            options: options of the session.
            places: names of nodes that may run on the CPU.

        Raises:
            DeviceError: if ONNX Runtime refuses the graph, or nodes would run elsewhere.
        """
        providers = self.select(options)
        return self.call(open_wholly, graph, options, providers, self.name, self.provider, places)

    def call(self, work: Callable[..., _Made], *arguments: Any) -> _Made:
        """Calls a function that works with the device, on the thread that such work must be on."""
        return work(*arguments)

    @abstractmethod
    def select(self, options: Any) -> Any:
        """Selects this device in a session's options; returns the session's `providers`."""

    def run(self, session: Any, binding: Any, options: Any = None) -> None:
        """Runs a session.

        Args:
            session: the session.
            binding: its inputs and outputs.
            options: options of this run.

        Raises:
            DeviceError: if the device fails, for example because its memory is full.
        """
        with failures_of(self.name):
            session.run_with_iobinding(binding, options)

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """Allocates a tensor with undefined content.

        Raises:
            DeviceError: if there is no room.
        """
        return self._made(ort.OrtValue.ortvalue_from_shape_and_type, shape, dtype.type)

    def placed(self, array: Array) -> Any:
        """Copies an array to the device.

        Raises:
            DeviceError: if there is no room.
        """
        return self._made(ort.OrtValue.ortvalue_from_numpy, array)

    def _made(self, make: Callable[..., Any], *arguments: Any) -> Any:
        with failures_of(self.name):
            return make(*arguments, self.kind, self.number)


class DeviceRunner:
    """A session with bindings for each size of a call.

    Args:
        gpu: the device.
        file: the graph.
        session: its session.
    """

    def __init__(self, gpu: Gpu, file: GraphFile, session: Any) -> None:
        self.gpu = gpu
        self.file = file
        self.session = session
        places = zip(session.get_inputs(), session.get_input_memory_infos(), strict=True)
        self.on_host = {each.name for each, place in places if place.name == "Cpu"}
        written = {name: file.pools[name] for name in file.written}
        self.writing: Any = None
        if written:  # a head may only read the pools of its target
            self.writing = gpu.session(_writing(written), session_options(1))
        types = {pool.dtype for pool in file.pools.values()}
        self._growing = {each: gpu.session(_growing(each), session_options(1)) for each in types}
        self._moving = {
            each: gpu.session(_moving(each), session_options(1)) for each in types if file.in_order
        }
        self._tables: dict[str, Any] = {}
        self._bound = dict[str, Any]()
        self._calls = dict[tuple[int, int], _Call]()
        self._writes = dict[int, _Write]()

    def run(
        self, inputs: Mapping[str, Array], pools: Mapping[str, Any], slots: Array
    ) -> dict[str, Floats]:
        """See `Runner`."""
        return self.gpu.call(self._run, inputs, pools, slots)

    def _run(
        self, inputs: Mapping[str, Array], pools: Mapping[str, Any], slots: Array
    ) -> dict[str, Floats]:
        if any(pools[name] is not bound for name, bound in self._bound.items()) or not self._bound:
            self._forget()
            self._bound.update(pools)
        rows = len(slots)
        sizes = (len(slots), len(inputs.get("logit_rows", ())))
        if rows not in self._writes and self.writing is not None:
            self._writes[rows] = _Write(self, pools, rows)
        write = self._writes.get(rows)
        if sizes not in self._calls:
            new = {} if write is None else write.new
            self._calls[sizes] = _Call(self, inputs, pools, new, sizes)
        found = self._calls[sizes].run(inputs)
        if write is not None:
            write.run(slots)
        return found

    def resized(self, shape: Sequence[int], dtype: np.dtype[Any], old: Any) -> Any:
        """See `Runner`."""
        return self.gpu.call(self._resized, shape, dtype, old)

    def _resized(self, shape: Sequence[int], dtype: np.dtype[Any], old: Any) -> Any:
        self._forget()  # bindings keep old pools alive
        if old is None:
            return self.gpu.placed(np.zeros(shape, dtype))
        made = self.gpu.empty(shape, dtype)
        session = self._growing[dtype]
        binding = session.io_binding()
        binding.bind_ortvalue_input("old", old)
        pads = np.array([0] * 6 + [shape[2] - old.shape()[2], 0], np.int64)
        bind_host_input(binding, "pads", pads)
        binding.bind_ortvalue_output("grown", made)
        self.gpu.run(session, binding, _Recording(self.gpu).next())
        return made

    def move(self, caches: Sequence[Cache], order: Ids) -> None:
        """See `Runner`."""
        self.gpu.call(self._move, caches, order)

    def _move(self, caches: Sequence[Cache], order: Ids) -> None:
        there = self.gpu.placed(order)
        back = self.gpu.placed(np.arange(len(order)))
        dtypes = [each.dtype for each in self.file.pools.values() if each.in_order]
        for cache, dtype in zip(caches, dtypes, strict=True):
            for each in (cache.keys, cache.values):
                other = self.gpu.empty(each.shape(), dtype)
                self._gathered(dtype, each, there, other)
                self._gathered(dtype, other, back, each)  # to where calls are bound to it

    def _gathered(self, dtype: np.dtype[Any], old: Any, order: Any, new: Any) -> None:
        session = self._moving[dtype]
        binding = session.io_binding()
        binding.bind_ortvalue_input("old", old)
        binding.bind_ortvalue_input("order", order)
        binding.bind_ortvalue_output("new", new)
        self.gpu.run(session, binding, _Recording(self.gpu).next())

    def table(self, name: str, places: int) -> Any:
        """Returns room for cosines and sines by place, of which each call writes its rows'."""
        shape = 2 * places, self.file.turns[name]
        if name not in self._tables or tuple(self._tables[name].shape()) != shape:
            self._tables[name] = self.gpu.placed(np.zeros(shape, self.file.types[name]))
        return self._tables[name]

    def _forget(self) -> None:
        for each in (self._bound, self._calls, self._writes, self._tables):
            each.clear()


class _Call:
    """The graph's inputs and outputs for one size of calls."""

    def __init__(
        self,
        runner: DeviceRunner,
        inputs: Mapping[str, Array],
        pools: Mapping[str, Any],
        new: Mapping[str, Any],
        sizes: tuple[int, int],
    ) -> None:
        self._gpu = runner.gpu
        self._session = runner.session
        self._handle = runner.session.io_binding()
        self._options = _Recording(self._gpu)
        self._arrays: dict[str, Array] = {}  # of inputs that are read on the host
        self._values: dict[str, Any] = {}
        for name, array in inputs.items():
            if name in runner.on_host:
                self._arrays[name] = array.copy()
                bind_host_input(self._handle, name, self._arrays[name])
            else:
                self._values[name] = self._gpu.empty(array.shape, array.dtype)
                self._handle.bind_ortvalue_input(name, self._values[name])
        for name, value in pools.items():
            if not isinstance(value, Cache):
                self._handle.bind_ortvalue_input(name, value)
        for name, value in cache_tensors(pools).items():
            self._bind_in_place(name, value)
        for name in runner.file.turns:
            self._bind_in_place(name, runner.table(name, int(inputs["total"][0])))
        known = dict(zip("SR", sizes, strict=True))
        self._found: dict[str, Any] = {}
        for name, dimensions in runner.file.outputs.items():
            shape = [each if isinstance(each, int) else known[each] for each in dimensions]
            if self._gpu.captures:  # a recorded call copies nothing to the host
                self._found[name] = self._gpu.empty(shape, np.dtype(np.float32))
                self._handle.bind_ortvalue_output(name, self._found[name])
            else:
                self._found[name] = np.empty(shape, np.float32)
                bind_host_output(self._handle, name, self._found[name])
        for name, value in new.items():
            self._handle.bind_ortvalue_output(name.replace("pool.", "new."), value)

    def _bind_in_place(self, name: str, value: Any) -> None:
        self._handle.bind_ortvalue_input(name, value)
        self._handle.bind_ortvalue_output(f"{name}.after", value)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Floats]:
        for name, array in inputs.items():
            if name in self._arrays:
                self._arrays[name][:] = array
            else:
                self._values[name].update_inplace(array)
        self._gpu.run(self._session, self._handle, self._options.next())
        if self._gpu.captures:
            return {name: value.numpy() for name, value in self._found.items()}
        return {name: array.copy() for name, array in self._found.items()}


class _Recording:
    """Options of one call's runs: of a GPU that captures, its second run is recorded."""

    _numbers = count(1)

    def __init__(self, gpu: Gpu) -> None:
        self._captures = gpu.captures
        self._runs = 0
        self._options: Any = None

    def next(self) -> Any:
        """Returns the options of the next run."""
        if self._captures and self._runs < 2:  # many sizes come once only
            number = next(self._numbers) if self._runs else -1
            self._options = ort.RunOptions()
            self._options.add_run_config_entry("gpu_graph_id", str(number))
            self._runs += 1
        return self._options


class _Write:
    """The write of a number of rows to pools, and the tensors that these rows come in.

    Attributes:
        new: by the pool's name, [2, heads, rows, dim].
    """

    def __init__(self, runner: DeviceRunner, pools: Mapping[str, Any], rows: int) -> None:
        self._gpu = runner.gpu
        self._session = runner.writing
        self._handle = self._session.io_binding()
        self._options = _Recording(runner.gpu)
        self.new: dict[str, Any] = {}
        self._places: dict[str, tuple[Array, Any]] = {}
        for name in runner.file.written:
            pool = runner.file.pools[name]
            heads = 2 * pool.heads
            slots = pools[name].shape()[2]
            self.new[name] = self._gpu.empty((2, pool.heads, rows, pool.dim), pool.dtype)
            # All heads' rows are one list, which fewer kinds of shaders can write to.
            flat = (heads * slots, pool.dim)
            self._bind(name, pool, pools[name], flat)
            self._bind(f"{name}.new", pool, self.new[name], (heads * rows, pool.dim))
            bind = self._handle.bind_output
            device = (self._gpu.kind, self._gpu.number, pool.dtype.type)
            bind(f"{name}.after", *device, flat, pools[name].data_ptr())
            places = _places(pool)
            if places not in self._places:
                first = slots * np.arange(heads)[:, None]
                value = self._gpu.empty((heads * rows, 1), np.dtype(np.int64))
                self._places[places] = first, value
                self._handle.bind_ortvalue_input(places, value)

    def run(self, slots: Array) -> None:
        for first, value in self._places.values():
            value.update_inplace((first + slots).reshape(-1, 1))
        self._gpu.run(self._session, self._handle, self._options.next())

    def _bind(self, name: str, pool: PoolInput, value: Any, shape: tuple[int, int]) -> None:
        device = (self._gpu.kind, self._gpu.number, pool.dtype.type)
        self._handle.bind_input(name, *device, shape, value.data_ptr())


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


def _of_sizes(graph: Any) -> set[str]:
    """Returns the names of nodes that compute with nothing but sizes of tensors and constants."""
    known = {"", *(each.name for each in graph.initializer)}
    found = set[str]()
    for node in graph.node:  # in the order in which they run
        if node.op_type == "Shape" or known.issuperset(node.input):
            known.update(node.output)
            found.add(node.name)
    return found


def _writing(pools: Mapping[str, PoolInput]) -> bytes:
    """Builds the graph that writes rows of all heads to places in the pools, [rows, dim] each."""
    inputs = Tensors()
    outputs = Tensors()
    nodes = []
    for name, pool in pools.items():
        kind = _element(pool.dtype)
        inputs[_places(pool)] = _INDEX, [_places(pool), 1]
        inputs[f"{name}.new"] = kind, [_places(pool), pool.dim]
        inputs[name] = outputs[f"{name}.after"] = kind, ["slots", pool.dim]
        scattered = [name, _places(pool), f"{name}.new"]
        nodes.append(helper.make_node("ScatterND", scattered, [f"{name}.after"]))
    return small_graph(nodes, inputs, outputs)


def _growing(dtype: np.dtype[Any]) -> bytes:
    """Builds the graph that appends slots of zeros."""
    inputs: Tensors = {"old": (_element(dtype), ["a", "b", "c", "d"]), "pads": (_INDEX, [8])}
    node = helper.make_node("Pad", ["old", "pads"], ["grown"])
    return small_graph([node], inputs, {"grown": (_element(dtype), ["a", "b", "n", "d"])})


def _moving(dtype: np.dtype[Any]) -> bytes:
    """Builds the graph that reads rows of a cache in another order."""
    dims = ["a", "b", "c", "d"]
    inputs: Tensors = {"old": (_element(dtype), dims), "order": (_INDEX, ["c"])}
    node = helper.make_node("Gather", ["old", "order"], ["new"], axis=2)
    return small_graph([node], inputs, {"new": (_element(dtype), dims)})


def _places(pool: PoolInput) -> str:
    """Returns the name of the input with places in pools of as many heads."""
    return f"places.{pool.heads}"


def _element(dtype: np.dtype[Any]) -> int:
    return int(helper.np_dtype_to_tensor_dtype(dtype))
