"""Engines by name, imported only when asked for."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from importlib import import_module

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


def engine(device: str) -> Engine:
    """The engine behind a full device string.

    Raises:
        DeviceError: if there is none of that name, or its library, a driver or the hardware is
            missing.
    """
    kind, _, number = device.partition(":")
    numbered = kind in _NUMBERED and re.fullmatch(r"\d*", number) is not None
    if not numbered and device not in _ENGINES:
        known = ", ".join((*_ENGINES, *(f"{each}:0" for each in _NUMBERED)))
        raise DeviceError(f"device {device!r} is not known: use cpu, gpu, {known}")
    module, name = _NUMBERED[kind] if numbered else _ENGINES[device]
    try:
        make = getattr(import_module(module), name)
        made: Engine = make(int(number or 0)) if numbered else make()
    except ImportError as error:
        raise DeviceError(f"device {device}: {error}: install it, or use another device") from error
    return made


@cache
def best_gpu() -> str | None:
    """The first of `GPU_ENGINES` that is usable here; None if there is none."""
    for name in GPU_ENGINES:
        with suppress(DeviceError):
            return engine(name).name
    return None
