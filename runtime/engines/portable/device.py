"""Portable graphs on GPUs of ONNX Runtime's: pools stay there, and new rows are written there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort
from onnx import helper

from edgespec.runtime.arrays import Array, Floats, Ids
from edgespec.runtime.engines.ort_session import (
    bind_host_input,
    bind_host_output,
    open_wholly,
    session_options,
)
from edgespec.runtime.engines.portable.cpu import failures_of, fixed_options
from edgespec.runtime.engines.portable.engine import FEW_ROWS, CallSlots
from edgespec.runtime.engines.portable.file import GraphFile, Shape, returned
from edgespec.runtime.engines.portable.places import Cache, cache_tensors
from edgespec.runtime.engines.portable.transfers import (
    Read,
    Recording,
    Write,
    growing,
    lists_of,
    moving,
    reading,
    writing,
)

_Made = TypeVar("_Made")


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
        self.lists = {name: lists_of(file, name) for name in (*file.written, *file.recurrent)}
        self.writing: Any = None
        if file.written:  # a head may only read the pools of its target
            written = {name: self.lists[name] for name in file.written}
            self.writing = gpu.session(writing(written), session_options(1))
        self.reading: Any = None
        if file.recurrent:
            read = {name: self.lists[name] for name in file.recurrent}
            self.reading = gpu.session(reading(read), session_options(1))
        types = {pool.dtype for pool in file.pools.values()}
        types |= {lists.dtype for lists in self.lists.values()}
        self._growing = {each: gpu.session(growing(each), session_options(1)) for each in types}
        self._moving = {
            each: gpu.session(moving(each), session_options(1)) for each in types if file.in_order
        }
        self._tables: dict[str, Any] = {}
        self._bound = dict[str, Any]()
        self._calls = dict[tuple[int, ...], _Call]()
        self._reads = dict[int, Read]()
        self._writes = dict[int, Write]()

    def run(
        self, inputs: Mapping[str, Array], pools: Mapping[str, Any], slots: CallSlots
    ) -> dict[str, Floats]:
        """See `Runner`."""
        return self.gpu.call(self._run, inputs, pools, slots)

    def _run(
        self, inputs: Mapping[str, Array], pools: Mapping[str, Any], slots: CallSlots
    ) -> dict[str, Floats]:
        if any(pools[name] is not bound for name, bound in self._bound.items()) or not self._bound:
            self._forget()
            self._bound.update(pools)
        rows = len(slots.write["pool"])
        recent = len(slots.read.get("rows", ()))
        sizes = (rows, len(inputs.get("logit_rows", ())))
        if rows not in self._writes and self.writing is not None:
            self._writes[rows] = Write(self, pools, slots)
        write = self._writes.get(rows)
        if recent not in self._reads and self.reading is not None:
            self._reads[recent] = Read(self, pools, slots)
        read = self._reads.get(recent)
        if (*sizes, recent) not in self._calls:
            new = {} if write is None else write.new
            held = {} if read is None else read.held
            self._calls[*sizes, recent] = _Call(self, inputs, {**pools, **held}, new, sizes)
        if read is not None:
            read.run(slots)
        found = self._calls[*sizes, recent].run(inputs)
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
        self.gpu.run(session, binding, Recording(self.gpu).next())
        return made

    def move(self, caches: Sequence[Cache], order: Ids) -> None:
        """See `Runner`."""
        self.gpu.call(self._move, caches, order)

    def _move(self, caches: Sequence[Cache], order: Ids) -> None:
        there = self.gpu.placed(order)
        back = self.gpu.placed(np.arange(len(order)))
        for cache in caches:
            dtype = helper.tensor_dtype_to_np_dtype(cache.keys.element_type())
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
        self.gpu.run(session, binding, Recording(self.gpu).next())

    def table(self, name: str, places: int) -> Any:
        """Returns room for cosines and sines by place, of which each call writes its rows'."""
        shape = 2 * places, self.file.turns[name]
        if name not in self._tables or tuple(self._tables[name].shape()) != shape:
            self._tables[name] = self.gpu.placed(np.zeros(shape, self.file.types[name]))
        return self._tables[name]

    def _forget(self) -> None:
        for each in (self._bound, self._calls, self._reads, self._writes, self._tables):
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
        self._options = Recording(self._gpu)
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
            if name in runner.file.recurrent:
                self._bind_recurrent(name, value, runner.file.recurrent[name])
            elif not isinstance(value, Cache):
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
            self._handle.bind_ortvalue_output(returned(name), value)

    def _bind_recurrent(self, name: str, value: Any, dims: tuple[int, ...]) -> None:
        shape = value.shape() if len(dims) == 1 else dims
        device = (self._gpu.kind, self._gpu.number, np.float32)
        self._handle.bind_input(name, *device, shape, value.data_ptr())

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


def _of_sizes(graph: Any) -> set[str]:
    """Returns the names of nodes that compute with nothing but sizes of tensors and constants."""
    known = {"", *(each.name for each in graph.initializer)}
    found = set[str]()
    for node in graph.node:  # in the order in which they run
        if node.op_type == "Shape" or known.issuperset(node.input):
            known.update(node.output)
            found.add(node.name)
    return found
