"""What the GPU engines of ONNX Runtime share: everything stays there but results and inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime as ort

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
from edgespec.runtime.engines.fixed import is_ordered, lengths
from edgespec.runtime.engines.gpu.device_cache import CacheGraphs, DeviceCache
from edgespec.runtime.engines.gpu.wide_rows import wide_rows
from edgespec.runtime.engines.host import MIB, activation_bytes, score_bytes
from edgespec.runtime.engines.ort_session import (
    assigned,
    bind_host_input,
    bind_host_output,
    first_line,
    look_for_data_beside,
    name_of,
    new_kv_shape,
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

# For kernels and the graph, which no interface tells: a guess on the safe side.
_GRAPH_BYTES = 8 * MIB


class OnnxRuntimeGpu(ABC):
    """A GPU behind an execution provider; subclasses say which.

    Attributes:
        provider: the execution provider's name.
        kind: what ONNX Runtime calls memory of such devices.
        number: of the device.
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
    integer_products = False

    def compile(self, stage: StageFile, threads: int) -> DeviceExecutable:
        """See `Engine`.

        A call of one row follows at once: what the device cannot do shows at the first call only,
        where kernels are compiled.
        """
        executable = DeviceExecutable(self, self.open(stage.graph), stage)
        executable.try_out()
        return executable

    def footprint(self, stage: StageSizes, calls: CallSizes) -> Footprint:
        """See `Engine`.

        Arithmetic, not measured: weights as the file has them with scales widened, and the largest
        call's tensors. A cache that grows is beside the smaller one for a moment.
        """
        smaller = 7 * calls.capacity // 8  # as 1792 beside 2048: others differ by more
        stored = stage.matmul_bytes + stage.embedding_bytes
        return Footprint(
            weights=stored + stage.widening_bytes(stored),
            repacked=0,
            mapped=0,
            logits=calls.logit_rows * (4 * stage.vocab + stage.result_bytes)
            + calls.rows * stage.passed_bytes,
            workspace=2 * stage.layers * stage.kv_width * stage.kv_bytes * smaller
            + 4 * calls.rows * (calls.capacity + calls.rows)  # the bias
            + _GRAPH_BYTES,
            shared=3 * score_bytes(stage, calls) + activation_bytes(stage, calls),
            loading=0,
        )

    def open(self, graph: Path | bytes) -> Any:
        """A session whose computing nodes all run on this device.

        Raises:
            DeviceError: if it is refused, or nodes would run elsewhere.
        """
        # The GPU computes: threads of the host would only take cores from those who need them.
        options = session_options(threads=1)
        options.log_severity_level = 4  # what fails is raised
        record_assignment(options)
        source = graph
        if isinstance(graph, Path):
            look_for_data_beside(graph, options)
            source = wide_rows(graph)
        session = open_session(source, options, self.select(options), name_of(graph))
        found = assigned(session, self.provider)
        if found.elsewhere:
            raise DeviceError(
                f"{name_of(graph)}: {self.name} would leave {found.elsewhere_in_short()} to the "
                "CPU: use another device"
            )
        return session

    @abstractmethod
    def select(self, options: Any) -> Any:
        """Have a session run here: what it is given as `providers`, after its options."""

    def run(self, session: Any, binding: Any) -> None:
        """Run what is bound.

        Raises:
            DeviceError: if the device fails, as where its memory is full.
        """
        try:
            session.run_with_iobinding(binding)
        except Exception as error:  # its exceptions share no base class but this
            raise DeviceError(
                f"{self.name} failed ({first_line(error)}): try another device, a shorter "
                "--context or a bundle of other precision"
            ) from error

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """A tensor on the device, of any content."""
        kind = np.dtype(dtype).type
        return ort.OrtValue.ortvalue_from_shape_and_type(shape, kind, self.kind, self.number)

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """A tensor on the device, all zero."""
        array = np.zeros(shape, dtype)
        return ort.OrtValue.ortvalue_from_numpy(array, self.kind, self.number)


class DeviceExecutable:
    """A session with a binding for each shape, made when the shape first comes."""

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
        """See `Executable`. Room is made as it is needed: the device gives it at once."""
        return DeviceCache(self._graphs, capacity)

    def run(self, feeds: Mapping[str, Array], cache: Cache) -> StageOutputs:
        """See `Executable`."""
        values = cast(DeviceCache, cache).values
        if values is not self._values:
            self._bindings.clear()  # bindings to another cache would keep it alive
            self._values = values
        binding = self._bindings.get(id(feeds))
        if binding is None:
            binding = _Binding(self, feeds, values)
            self._bindings[id(feeds)] = binding
        return binding.run()

    def try_out(self) -> None:
        """One call of one row, in a cache of its own.

        Raises:
            DeviceError: if the device cannot do what the stage asks for.
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
        if "lengths" in feeds:
            feeds["lengths"][:] = lengths(shape, is_ordered(feeds))
        cache = self.new_cache(shape.capacity, 0)
        cache.write(self.run(feeds, cache).new_kv, [0], 0)
        self._bindings.clear()
        self._values = None


class _Binding:
    """Inputs and outputs of one shape, bound in place: on the device but for results."""

    def __init__(
        self, executable: DeviceExecutable, feeds: Mapping[str, Array], values: Mapping[str, Any]
    ) -> None:
        gpu, stage = executable.gpu, executable.stage
        self._executable = executable
        self._alive = feeds  # the handle holds addresses only
        self._handle = executable.session.io_binding()
        self._uploads = []
        for name, array in feeds.items():
            if name in executable.on_host:
                bind_host_input(self._handle, name, array)
            else:
                value = gpu.empty(array.shape, array.dtype.name)
                self._uploads.append((array, value))
                self._handle.bind_ortvalue_input(name, value)
        for name, value in values.items():
            self._handle.bind_ortvalue_input(name, value)
        results = result_arrays(stage, feeds)
        for name, array in results.items():
            bind_host_output(self._handle, name, array)
        new_kv = None
        if stage.cache_shape[0]:
            new_kv = gpu.empty(new_kv_shape(stage, feeds), stage.kv_dtype)
            self._handle.bind_ortvalue_output("new_kv", new_kv)
        self._outputs = StageOutputs(results, new_kv)

    def run(self) -> StageOutputs:
        for array, value in self._uploads:
            value.update_inplace(array)
        self._executable.gpu.run(self._executable.session, self._handle)
        return self._outputs
