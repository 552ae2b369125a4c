"""Portable graphs with OpenVINO, on Intel's GPUs and NPUs; pools stay in host memory."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import openvino as ov

from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Array, Floats
from edgespec.runtime.engines.callers import raise_if_callers
from edgespec.runtime.engines.portable.cpu import HostPools, failed
from edgespec.runtime.engines.portable.engine import FEW_ROWS, CallSlots
from edgespec.runtime.engines.portable.file import GraphFile, Shape, returned
from edgespec.system.cachedir import intact, seal

_REMEDIES = {
    "GPU": "install its driver (Debian, Ubuntu: apt-get install intel-opencl-icd)",
    "NPU": "install its driver (Linux: github.com/intel/linux-npu-driver)",
    "CPU": "install OpenVINO again",
}
# float16 is the default of GPUs, bfloat16 of some CPUs, and neither is what was exported.
_EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


class OpenVino:
    """A device of OpenVINO's; its CPU stands in for the others in tests.

    Args:
        kind: gpu, npu or cpu.

    Raises:
        DeviceError: if there is no such device, or its driver is missing.
    """

    version: str = ov.__version__
    fused = None
    fused_rows = None
    queues = False
    rows = FEW_ROWS

    def __init__(self, kind: str) -> None:
        self.name = f"openvino:{kind}"
        self._kind = kind.upper()
        self.shape = Shape(16, 1024) if kind == "npu" else None
        self.half = True if kind == "npu" else None
        try:
            self.hardware = str(core().get_property(self._kind, "FULL_DEVICE_NAME"))
            self.own_bytes = self._own_bytes()
        except RuntimeError as error:
            raise DeviceError(
                f"device {self.name}: it cannot be used ({_last_line(error)}): "
                f"{_REMEDIES[self._kind]}, or use --device cpu"
            ) from error

    def open(self, file: GraphFile, threads: int, shape: Shape | None) -> OpenVinoRunner:
        """See `GraphEngine`."""
        config = {"PERFORMANCE_HINT": "LATENCY"} | ({} if self._kind == "NPU" else _EXACT)
        cache = file.path.parent / "openvino"  # compiling can take minutes
        if not intact(cache):
            shutil.rmtree(cache, ignore_errors=True)
        known = set(cache.glob("*"))
        config["CACHE_DIR"] = str(cache)
        if self._kind == "CPU":
            config |= {"NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": str(threads)}
        try:
            model = core().read_model(str(file.path))
            if shape is not None:
                sizes = file.sizes(shape)
                model.reshape(
                    {
                        name: ov.PartialShape([sizes.get(str(each), each) for each in dimensions])
                        for name, dimensions in file.inputs.items()
                    }
                )
            compiled = core().compile_model(model, self._kind, config)
            if known != set(cache.glob("*")):
                seal(cache)
        except RuntimeError as error:
            raise DeviceError(
                f"{file.path}: device {self.name} refused it ({_last_line(error)}): try another "
                "--device"
            ) from error
        return OpenVinoRunner(self.name, file, compiled)

    def _own_bytes(self) -> int | None:
        """Returns the bytes of a GPU's own memory, of which the free part is unknown."""
        if self._kind != "GPU" or "INTEGRATED" in str(core().get_property("GPU", "DEVICE_TYPE")):
            return None
        return int(core().get_property("GPU", "GPU_DEVICE_TOTAL_MEM_SIZE"))


class OpenVinoRunner(HostPools):
    """A compiled graph.

    Args:
        device: name of the device.
        file: the graph.
        compiled: it, as OpenVINO's compiled model.
    """

    def __init__(self, device: str, file: GraphFile, compiled: Any) -> None:
        self._device = device
        self._file = file
        self._request = compiled.create_infer_request()
        named = [*file.outputs, *map(returned, file.written)]
        self._ports = {name: compiled.output(name) for name in named}
        self._bound: dict[str, Array] = {}  # tensors share their memory

    def run(
        self, inputs: Mapping[str, Array], pools: Mapping[str, Any], slots: CallSlots
    ) -> dict[str, Floats]:
        """See `Runner`."""
        for name, array in {**inputs, **self._read(pools, slots, self._file)}.items():
            if not _lies_where(self._bound.get(name), array):
                self._bound[name] = shared = np.ascontiguousarray(array)
                self._request.set_tensor(name, ov.Tensor(shared, shared_memory=True))
        try:
            self._request.infer()
        except RuntimeError as error:
            raise_if_callers(error)
            raise failed(self._device, _last_line(error)) from error
        found = {name: self._request.get_tensor(port).data for name, port in self._ports.items()}
        # The next pass overwrites them.
        return {name: each.copy() for name, each in self._written(found, pools, slots).items()}


@cache
def core() -> ov.Core:
    """Returns the core that all of OpenVINO's devices share; it lives as long as the process.

    Each core's CPU plug-in sets an alternative stack for signals. Cores that are freed in another
    order than they were made leave the thread with a stack that is gone, and its next signal, such
    as Ctrl-C, ends the process.
    """
    return ov.Core()


def _lies_where(bound: Array | None, array: Array) -> bool:
    """Whether an array is the memory that is bound."""
    return bound is not None and (bound.ctypes.data, bound.shape) == (
        array.ctypes.data,
        array.shape,
    )


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
