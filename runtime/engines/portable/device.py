"""Portable graphs on GPUs of ONNX Runtime's: pools stay there, and new rows are written there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort
from onnx import helper

from edgespec.runtime.arrays import Array, Floats, Ids
from edgespec.runtime.engines.ort_session import (
    bind_host_input,
    look_for_data_beside,
    open_wholly,
    session_options,
)
from edgespec.runtime.engines.portable.calls import BoundCall
from edgespec.runtime.engines.portable.cpu import failures_of, fixed_options
from edgespec.runtime.engines.portable.engine import FEW_ROWS, CallSlots, QueuedPass
from edgespec.runtime.engines.portable.file import GraphFile, Shape, returned
from edgespec.runtime.engines.portable.places import Cache, cache_tensors
from edgespec.runtime.engines.portable.ranking import BEST, NEXT
from edgespec.runtime.engines.portable.transfers import (
    PoolTensors,
    Read,
    Recording,
    Write,
    bound_parts,
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
    queues = True

    def open(self, file: GraphFile, threads: int, shape: Shape | None) -> DeviceRunner:
        """See `GraphEngine`."""
        options = fixed_options(file, 1, shape)
        look_for_data_beside(file.path, options)
        places = _of_sizes(file.model.graph)
        return DeviceRunner(self, file, self.session(file.source, options, places))

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
        self._calls = dict[tuple[object, ...], BoundCall]()
        self._reads = dict[int, Read]()
        self._writes = dict[int, Write]()
        self._ranking = dict[tuple[object, ...], BoundCall]()
        self._next = dict[tuple[int, int], Any]()

    def run(
        self, inputs: Mapping[str, Array], pools: Mapping[str, Any], slots: CallSlots
    ) -> dict[str, Floats]:
        """See `Runner`."""
        return self.gpu.call(self._run, inputs, pools, slots)

    def _run(
        self, inputs: Mapping[str, Array], pools: Mapping[str, Any], slots: CallSlots
    ) -> dict[str, Floats]:
        write = self._write_of(pools, slots)
        read = self._read_of(pools, slots)
        sizes = (len(slots.write["pool"]), len(inputs.get("logit_rows", ())))
        key = (*sizes, *_sizes_of_paths(inputs, slots))
        if key not in self._calls:
            held = {} if read is None else read.held
            call = self._bound_call(inputs, {**pools, **held}, write)
            self._calls[key] = call
            known = dict(zip("SR", sizes, strict=True))
            for name, dimensions in self.file.outputs.items():
                shape = [each if isinstance(each, int) else known[each] for each in dimensions]
                call.give(name, shape, on_host=not self.gpu.captures)
        if read is not None:
            read.run(slots)
        self._calls[key].run(inputs)
        found = self._calls[key].found()
        if write is not None:
            write.run(slots)
        return found

    def best(
        self, passes: Iterator[QueuedPass], count: int, pools: Mapping[str, Any]
    ) -> list[Floats]:
        """See `QueueRunner`."""
        return self.gpu.call(self._best, passes, count, pools)

    def _best(
        self, passes: Iterator[QueuedPass], count: int, pools: Mapping[str, Any]
    ) -> list[Floats]:
        sent = [
            self._send(each, number, number == count - 1, pools)
            for number, each in enumerate(passes)
        ]
        return [each.found()[BEST] for each in sent]

    def _send(
        self, one: QueuedPass, number: int, last: bool, pools: Mapping[str, Any]
    ) -> BoundCall:
        inputs, slots = one
        write = self._write_of(pools, slots)
        read = self._read_of(pools, slots)
        wanted = len(inputs["logit_rows"])
        sizes = (len(slots.write["pool"]), wanted, *_sizes_of_paths(inputs, slots))
        key = (number, last, *sizes)
        if key not in self._ranking:
            held = {} if read is None else read.held
            found = {"input_ids": self._next[number - 1, wanted]} if number else {}
            call = self._bound_call(inputs, {**pools, **held}, write, found)
            self._ranking[key] = call
            # Copying to the host waits for the device, so that the last call alone does it.
            on_host = last and not self.gpu.captures
            call.give(BEST, (wanted, 2 * self.file.ranked), on_host)
            call.give_tensor(NEXT, self._next_tokens(number, wanted))
        if read is not None:
            read.run(slots)
        self._ranking[key].run(inputs, wait=last or write is not None)
        if write is not None:
            write.run(slots)
        return self._ranking[key]

    def _next_tokens(self, number: int, rows: int) -> Any:
        """Returns where a pass of a queue puts the tokens that the next one reads."""
        if (number, rows) not in self._next:
            self._next[number, rows] = self.gpu.empty((rows,), np.dtype(np.int64))
        return self._next[number, rows]

    def _write_of(self, pools: Mapping[str, Any], slots: CallSlots) -> Write | None:
        """Returns the write of so many rows, if any pool is written apart; binds new pools."""
        if any(pools[name] is not bound for name, bound in self._bound.items()) or not self._bound:
            self._forget()
            self._bound.update(pools)
        if self.writing is None:
            return None
        rows = len(slots.write["pool"])
        if rows not in self._writes:
            self._writes[rows] = Write(self, pools, slots)
        return self._writes[rows]

    def _read_of(self, pools: Mapping[str, Any], slots: CallSlots) -> Read | None:
        """Returns the read of so many recent rows, if there are recurrent layers."""
        if self.reading is None:
            return None
        recent = len(slots.read.get("rows", ()))
        if recent not in self._reads:
            self._reads[recent] = Read(self, pools, slots)
        return self._reads[recent]

    def _bound_call(
        self,
        inputs: Mapping[str, Array],
        pools: Mapping[str, Any],
        write: Write | None,
        found: Mapping[str, Any] | None = None,
    ) -> BoundCall:
        """Returns a call with all bound but outputs; another call has found inputs of `found`."""
        call = BoundCall(self.gpu, self.session)
        there = {n: value for n, value in pools.items() if not isinstance(value, Cache)}
        there |= found or {}
        for name, array in inputs.items():
            if name not in there:
                call.read(name, array, name in self.on_host)
        for name, value in there.items():
            dims = self.file.recurrent.get(name, ())
            for part, tensor in bound_parts(name, value).items():
                call.read_tensor(part, tensor, dims if len(dims) > 1 else None)
        for name, value in cache_tensors(pools).items():
            call.change(name, value)
        for name in self.file.turns:
            call.change(name, self.table(name, int(inputs["total"][0])))
        for name, value in ({} if write is None else write.new).items():
            call.give_tensor(returned(name), value)
        return call

    def resized(self, shape: Sequence[int], dtype: np.dtype[Any], old: Any) -> Any:
        """See `Runner`."""
        return self.gpu.call(self._resized, shape, dtype, old)

    def _resized(self, shape: Sequence[int], dtype: np.dtype[Any], old: Any) -> Any:
        if shape[0] == 2:
            parts = (None, None) if old is None else (old.keys, old.values)
            made = [self._resized((1, *shape[1:]), dtype, each) for each in parts]
            return PoolTensors(*made)
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
        bound = (self._bound, self._calls, self._reads, self._writes, self._ranking, self._tables)
        for each in bound:
            each.clear()


def _sizes_of_paths(inputs: Mapping[str, Array], slots: CallSlots) -> list[object]:
    """Returns the sizes of what recurrent layers are told of a call, if there are any."""
    shapes = [each.shape for name, each in inputs.items() if name.startswith("paths.")]
    return [len(slots.read.get("rows", ())), *shapes]


def _of_sizes(graph: Any) -> set[str]:
    """Returns the names of nodes that compute with nothing but sizes of tensors and constants."""
    known = {"", *(each.name for each in graph.initializer)}
    found = set[str]()
    for node in graph.node:  # in the order in which they run
        if node.op_type == "Shape" or known.issuperset(node.input):
            known.update(node.output)
            found.add(node.name)
    return found
