"""Engines by name, imported only when asked for."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from edgespec.errors import DeviceError
from edgespec.runtime.engines.base import (
    Array,
    Cache,
    CallSizes,
    Engine,
    Engines,
    Executable,
    Footprint,
    Result,
    StageFile,
    StageOutputs,
    StageSizes,
    joined,
)
from edgespec.runtime.engines.distributions import require_one_distribution
from edgespec.runtime.engines.host import available_bytes

__all__ = [
    "CPU_ENGINES",
    "GPU_ENGINES",
    "Array",
    "Cache",
    "CallSizes",
    "Engine",
    "Engines",
    "Executable",
    "Footprint",
    "Result",
    "StageFile",
    "StageOutputs",
    "StageSizes",
    "available_bytes",
    "best_gpu",
    "engine",
    "joined",
    "require_one_distribution",
    "simulated_name",
]

_ENGINES = {
    "onnxruntime:cpu": ("edgespec.runtime.engines.onnxruntime", "OnnxRuntimeCpu"),
    "openvino:cpu": ("edgespec.runtime.engines.openvino", "OpenVinoCpu"),
    "openvino:gpu": ("edgespec.runtime.engines.openvino_gpu", "OpenVinoGpu"),
}
_NUMBERED = {
    "cuda": ("edgespec.runtime.engines.cuda", "Cuda"),
    "webgpu": ("edgespec.runtime.engines.webgpu", "WebGpu"),
}

CPU_ENGINES = ("onnxruntime:cpu", "openvino:cpu")
"""The candidates for the device `cpu`."""

GPU_ENGINES = ("cuda:0", "webgpu:0", "openvino:gpu")
"""The candidates for the device `gpu`, the best first.

CUDA's kernels are made by the GPU's own vendor. WebGPU runs on any vendor's, with the cache there,
too. OpenVINO's cache stays on the host.
"""

_SIMULATED = "simulated:"
_SIMULATOR = ("edgespec.runtime.engines.simulated", "SimulatedEngine")


def simulated_name(device: str, machine: str) -> str:
    """The full device string of a machine's device that is to be simulated."""
    return f"{_SIMULATED}{device}@{machine}"


def engine(device: str) -> Engine:
    """The engine behind a full device string.

    Raises:
        DeviceError: if there is none of that name, or its library, a driver or the hardware is
            missing.
        InputError: if its machine is simulated and cannot be read.
    """
    (module, name), arguments = _found(device)
    try:
        made: Engine = getattr(import_module(module), name)(*arguments)
    except ImportError as error:
        raise DeviceError(f"device {device}: {error}: install it, or use another device") from error
    return made


def _found(device: str) -> tuple[tuple[str, str], list[Any]]:
    """An engine's module and class, and what makes one of it.

    Raises:
        DeviceError: if there is none of that name.
    """
    if device.startswith(_SIMULATED):
        return _SIMULATOR, [device.removeprefix(_SIMULATED)]
    kind, _, number = device.partition(":")
    if kind in _NUMBERED and re.fullmatch(r"\d*", number):
        return _NUMBERED[kind], [int(number or 0)]
    if device not in _ENGINES:
        known = ", ".join((*_ENGINES, *(f"{each}:0" for each in _NUMBERED)))
        raise DeviceError(f"device {device!r} is not known: use cpu, gpu, {known}")
    return _ENGINES[device], []


@cache
def best_gpu() -> str | None:
    """The first of `GPU_ENGINES` that is usable here; None if there is none."""
    for name in GPU_ENGINES:
        with suppress(DeviceError):
            return engine(name).name
    return None
