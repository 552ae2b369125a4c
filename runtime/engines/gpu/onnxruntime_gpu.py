"""Base of ONNX Runtime's GPU engines; only inputs and results cross between host and GPU."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime as ort

from edgespec.bundle.caches import TEXT_ROWS, new_kv_output
from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.base import (
    Cache,
    CallSizes,
    Footprint,
    StageFile,
    StageOutputs,
    StageSizes,
)
from edgespec.runtime.engines.fixed import is_lengths, is_ordered, kept_by_input, lengths
from edgespec.runtime.engines.gpu.device_cache import (
    CacheGraphs,
    DeviceCache,
    DeviceOutputs,
    DeviceRoom,
    DeviceSeats,
)
from edgespec.runtime.engines.gpu.graphs import on_host, widen_rows
from edgespec.runtime.engines.host import MIB, activation_bytes, score_bytes
from edgespec.runtime.engines.ort_session import (
    assigned,
    bind_host_input,
    bind_host_output,
    first_line,
    look_for_data_beside,
    name_of,
    new_kv_shapes,
    open_session,
    record_assignment,
    result_arrays,
    session_options,
)
from edgespec.runtime.shapes import ANY_SHAPES, Shape, dimension

_DTYPES = {
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
}

# Memory of kernels and graph, which no interface reports: a cautious estimate.
_GRAPH_BYTES = 8 * MIB


class OnnxRuntimeGpu(ABC):
    """A GPU that runs an execution provider of ONNX Runtime.

    Attributes:
        provider: name of the execution provider.
        kind: ONNX Runtime's name for the memory of such devices.
        number: number of the device.
    """

    name: str
    hardware: str
    version: str
    memory: str
    library_bytes: int
    provider: str
    kind: str
    number: int
    shapes = ANY_SHAPES
    variant: str | None = None
    keeps_states = False
    several_texts = True
    integer_caches = False

    def compile(self, stage: StageFile, threads: int) -> DeviceExecutable:
        """See `Engine`.

        It also runs a call of one row: kernels are compiled at the first call, so only then an
        operator that the device does not support shows.
        """
        executable = DeviceExecutable(self, self.open(stage.graph), stage)
        executable.try_out()
        return executable

    def footprint(self, stage: StageSizes, calls: CallSizes) -> Footprint:
        """See `Engine`.

        This is calculated, not measured: the weights as stored, with widened scales, and the
        tensors of the largest call. There is a cache more: while one grows, the old one; beside
        those of several texts, that of a text which does not share calls yet, or the copy of one
        for a call over it alone.
        """
        stored = stage.matmul_bytes + stage.embedding_bytes
        return Footprint(
            weights=stored + stage.widening_bytes(stored),
            repacked=0,
            mapped=0,
            logits=calls.logit_rows * (4 * stage.vocab + stage.result_bytes)
            + calls.rows * stage.passed_bytes,
            workspace=stage.cache_bytes(calls.capacity)
            + 4 * calls.rows * (calls.capacity + calls.rows)  # the bias
            + _GRAPH_BYTES,
            shared=3 * score_bytes(stage, calls) + activation_bytes(stage, calls),
            loading=0,
        )

    def open(self, graph: Path | bytes) -> Any:
        """Opens a session whose computing nodes all run on this device.

        Raises:
            DeviceError: if ONNX Runtime refuses the graph, or nodes would run elsewhere.
        """
        # The GPU computes; more host threads would only take cores from others.
        options = session_options(threads=1)
        options.log_severity_level = 4  # failures are raised, so no log is needed
        record_assignment(options)
        source, places = graph, frozenset[str]()
        if isinstance(graph, Path):
            look_for_data_beside(graph, options)
            model = onnx.load(str(graph), load_external_data=False)
            widen_rows(model.graph)
            source, places = bytes(model.SerializeToString()), on_host(model.graph)
        session = open_session(source, options, self.select(options), name_of(graph))
        found = assigned(session, self.provider, places)
        if found.elsewhere:
            raise DeviceError(
                f"{name_of(graph)}: {self.name} would leave {found.elsewhere_in_short()} to the "
                "CPU: use another device"
            )
        return session

    @abstractmethod
    def select(self, options: Any) -> Any:
        """Selects this device for a session.

        Args:
            options: the session's options, which may be changed.

        Returns:
            The session's `providers`.
        """

    def run(self, session: Any, binding: Any) -> None:
        """Runs a session with a binding.

        Raises:
            DeviceError: if the device fails, for example because its memory is full.
        """
        try:
            session.run_with_iobinding(binding)
        except Exception as error:  # its exceptions have no narrower base class
            raise DeviceError(
                f"{self.name} failed ({first_line(error)}): try another device, a shorter "
                "--context or a bundle of other precision"
            ) from error

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """Allocates a tensor on the device with undefined content."""
        kind = np.dtype(dtype).type
        return ort.OrtValue.ortvalue_from_shape_and_type(shape, kind, self.kind, self.number)

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """Allocates a tensor of zeros on the device."""
        return self.placed(np.zeros(shape, dtype))

    def placed(self, array: Array) -> Any:
        """Copies an array to the device."""
        return ort.OrtValue.ortvalue_from_numpy(array, self.kind, self.number)

    def bind_input(
        self, binding: Any, name: str, tensor: Any, dtype: str, shape: Sequence[int]
    ) -> None:
        """Binds an input to the beginning of a tensor, which the caller must keep alive."""
        kind = np.dtype(dtype).type
        binding.bind_input(name, self.kind, self.number, kind, shape, tensor.data_ptr())

    def bind_output(
        self, binding: Any, name: str, tensor: Any, dtype: str, shape: Sequence[int]
    ) -> None:
        """Binds an output to the beginning of a tensor, which the caller must keep alive."""
        kind = np.dtype(dtype).type
        binding.bind_output(name, self.kind, self.number, kind, shape, tensor.data_ptr())


class DeviceExecutable:
    """A session with a binding for each shape, created at the first call of that shape."""

    seats_on_device = True

    def __init__(self, gpu: OnnxRuntimeGpu, session: Any, stage: StageFile) -> None:
        self.gpu = gpu
        self.session = session
        self.stage = stage
        inputs, places = session.get_inputs(), session.get_input_memory_infos()
        self.on_host = {
            tensor.name for tensor, place in zip(inputs, places, strict=True) if place.name == "Cpu"
        }
        self._graphs = CacheGraphs(gpu, stage)
        self._values: dict[str, Any] | None = None
        self._bindings: dict[int, _Binding] = {}

    def new_cache(self, capacity: int, most: int) -> DeviceCache:
        """See `Executable`. `most` is ignored: a device would allocate all of it at once."""
        return DeviceCache.alone(self._graphs, capacity)

    def new_seats(self, count: int, capacity: int) -> DeviceSeats:
        """See `Seating`."""
        return DeviceSeats(self._graphs, count, capacity)

    def run(self, feeds: Mapping[str, Array], cache: Cache | DeviceRoom) -> StageOutputs:
        """See `Executable`."""
        values = cast(DeviceCache | DeviceRoom, cache).values
        if values is not self._values:
            self._bindings.clear()  # bindings to another cache would keep it alive
            self._values = values
        binding = self._bindings.get(id(feeds))
        if binding is None:
            binding = _Binding(self, feeds, values)
            self._bindings[id(feeds)] = binding
        return binding.run()

    def try_out(self) -> None:
        """Runs one call of one row, with a temporary cache.

        Raises:
            DeviceError: if the device cannot run the stage.
        """
        shape = Shape(rows=1, capacity=16)
        feeds = {
            tensor.name: np.zeros(
                [dimension(n, shape) if isinstance(n, str) else n for n in tensor.shape],
                _DTYPES[tensor.type],
            )
            for tensor in self.session.get_inputs()
            if not tensor.name.startswith("past.")
        }
        kept = kept_by_input(self.stage.cache_groups, shape.capacity)
        for name in filter(is_lengths, feeds):
            own = Shape(shape.rows, kept.get(name, shape.capacity))
            feeds[name][:] = lengths(own, is_ordered(feeds))
        cache = self.new_cache(shape.capacity, 0)
        cache.write(self.run(feeds, cache).new_kv_of(0), [0], 0)
        self._bindings.clear()
        self._values = None


class _Binding:
    """Inputs and outputs of calls of one shape; all but the results lie on the device."""

    def __init__(
        self, executable: DeviceExecutable, feeds: Mapping[str, Array], values: Mapping[str, Any]
    ) -> None:
        gpu, stage = executable.gpu, executable.stage
        self._executable = executable
        self._alive = feeds  # kept alive: the handle holds only addresses
        self._handle = executable.session.io_binding()
        self._uploads = []
        for name, array in feeds.items():
            if name in executable.on_host:
                bind_host_input(self._handle, name, array)
            else:
                value = gpu.empty(array.shape, array.dtype.name)
                self._uploads.append((array, value))
                self._handle.bind_ortvalue_input(name, value)
        self._bind_caches(values)
        results = result_arrays(stage, feeds)
        for name, array in results.items():
            bind_host_output(self._handle, name, array)
        new_kv = []
        for shape, group in zip(new_kv_shapes(stage, feeds), stage.cache_groups, strict=True):
            # The graph has one dimension for layers, keys or values, and texts.
            flat = (math.prod(shape[:3]), *shape[3:]) if stage.several_texts else shape
            new_kv.append(gpu.empty(flat, group.dtype))
        for number, value in enumerate(new_kv):
            self._handle.bind_ortvalue_output(new_kv_output(number), value)
        self._outputs = DeviceOutputs(results, new_kv, several_texts=stage.several_texts)

    def run(self) -> StageOutputs:
        for array, value in self._uploads:
            value.update_inplace(array)
        self._executable.gpu.run(self._executable.session, self._handle)
        return self._outputs

    def _bind_caches(self, values: Mapping[str, Any]) -> None:
        """Binds the tensors of the cache, or those of the call's texts if there may be several."""
        stage, gpu = self._executable.stage, self._executable.gpu
        if not stage.several_texts:
            for name, value in values.items():
                self._handle.bind_ortvalue_input(name, value)
            return
        texts = len(self._alive[TEXT_ROWS])
        for group in stage.cache_groups:
            for name in group.names:
                shape = (texts, *values[name].shape()[1:])
                gpu.bind_input(self._handle, name, values[name], group.dtype, shape)
