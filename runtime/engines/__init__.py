"""Creates engines by name; their modules are imported only when they are needed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from edgespec.errors import DeviceError, InputError
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.base import (
    Cache,
    CallSizes,
    CompiledFile,
    Engine,
    Engines,
    Executable,
    Footprint,
    Result,
    StageFile,
    StageOutputs,
    StageSizes,
    cache_bytes,
    common_shapes,
    joined_names,
)
from edgespec.runtime.engines.distributions import require_one_distribution
from edgespec.runtime.engines.held import Held
from edgespec.runtime.engines.host import available_bytes
from edgespec.runtime.engines.npu.socs import SOCS, soc_of
from edgespec.runtime.engines.optional import (
    Assigning,
    Assignment,
    Compiler,
    Fixable,
    Quantizer,
    Seating,
    Seats,
)
from edgespec.runtime.engines.recurrence import Recurrence, recurrent_bytes
from edgespec.runtime.engines.telemetry import switch_off
from edgespec.runtime.shapes import Shapes

__all__ = [
    "CHANGING_CPU_ENGINES",
    "CPU_ENGINES",
    "EXPERIMENTAL",
    "GPU_ENGINES",
    "NPU_ENGINES",
    "SOCS",
    "Array",
    "Assigning",
    "Assignment",
    "Cache",
    "CallSizes",
    "CompiledFile",
    "Compiler",
    "Engine",
    "Engines",
    "Executable",
    "Fixable",
    "Footprint",
    "Held",
    "Quantizer",
    "Recurrence",
    "Result",
    "Seating",
    "Seats",
    "StageFile",
    "StageOutputs",
    "StageSizes",
    "available_bytes",
    "best_gpu",
    "cache_bytes",
    "common_shapes",
    "compiler",
    "engine",
    "is_experimental",
    "is_gpu",
    "joined_names",
    "quantizer",
    "recurrent_bytes",
    "require_one_distribution",
]

switch_off()  # here, since no engine's module is imported before this package

_ENGINES = {
    "onnxruntime:cpu": ("edgespec.runtime.engines.cpu.onnxruntime", "OnnxRuntimeCpu"),
    "openvino:cpu": ("edgespec.runtime.engines.cpu.openvino", "OpenVinoCpu"),
    "openvino:cpu-bf16": ("edgespec.runtime.engines.cpu.openvino", "OpenVinoCpuBfloat16"),
    "openvino:gpu": ("edgespec.runtime.engines.gpu.openvino_gpu", "OpenVinoGpu"),
    "openvino:npu": ("edgespec.runtime.engines.npu.openvino_npu", "OpenVinoNpu"),
    "qnn:npu": ("edgespec.runtime.engines.npu.qnn", "QnnNpu"),
    "qnn:emulated": ("edgespec.runtime.engines.npu.qnn", "QnnEmulated"),
}
_NUMBERED = {
    "cuda": ("edgespec.runtime.engines.gpu.cuda", "Cuda"),
    "webgpu": ("edgespec.runtime.engines.gpu.webgpu", "WebGpu"),
}

CPU_ENGINES = ("onnxruntime:cpu", "openvino:cpu")
"""The candidates for the device `cpu`."""

CHANGING_CPU_ENGINES = ("openvino:cpu-bf16",)
"""CPU engines that compute something else than was exported: only their own names choose them."""

GPU_ENGINES = ("cuda:0", "webgpu:0", "openvino:gpu")
"""The candidates for the device `gpu`, the best first.

CUDA's kernels come from the GPU's vendor. WebGPU runs on GPUs of any vendor and also keeps the
cache on the GPU. OpenVINO keeps it on the host.
"""

_GPUS = ("cuda:", "webgpu:", "openvino:gpu")  # beginnings of the names of all of them

NPU_ENGINES = ("qnn:npu", "openvino:npu", "qnn:emulated")
"""The engines of NPUs; the last one slowly emulates a compiled NPU program on the CPU."""

EXPERIMENTAL = ("cuda:", "webgpu:", "openvino:gpu", "openvino:npu", "qnn:npu")
"""Beginnings of the names of devices that have never been run on real hardware.

WebGPU was run on a GPU in software, and Qualcomm's compiler with its emulation, `qnn:emulated`.
"""

# Names of these may end in `#` and shapes. Names of _HELPED may also end in `#partly`: the CPU then
# runs the nodes that the NPU does not support.
_FIXABLE = (*CPU_ENGINES, *NPU_ENGINES)
_HELPED, _PARTLY = ("qnn:npu", "qnn:emulated"), "partly"


def engine(device: str) -> Engine:
    """Returns the engine for a full device string.

    Raises:
        DeviceError: if there is no such engine, or its library, a driver or the hardware is
            missing.
        InputError: if the shapes are not valid.
    """
    made: Engine = _made(device, *_found(device))
    return made


def is_experimental(device: str) -> bool:
    """Whether a device's engine has never been run on real hardware, see `EXPERIMENTAL`."""
    return device.startswith(EXPERIMENTAL)


def is_gpu(device: str) -> bool:
    """Whether a device is a GPU."""
    return device.startswith(_GPUS)


def compiler(device: str) -> Compiler:
    """Returns a compiler of stages for a device, which need not be in this machine.

    Raises:
        DeviceError: if the compiler's library is missing.
        InputError: if the device is not known.
    """
    soc = soc_of(device)
    made: Compiler = _made(device, _ENGINES["qnn:emulated"], [None, False, soc])
    return made


def quantizer() -> Quantizer:
    """Returns the quantizer of NPU variants, which calibrates them by running them on the CPU.

    Raises:
        DeviceError: if its library is missing.
    """
    where = ("edgespec.runtime.engines.npu.qdq", "QdqQuantizer")
    made: Quantizer = _made(CPU_ENGINES[0], where, [])
    return made


def _made(device: str, where: tuple[str, str], arguments: list[Any]) -> Any:
    module, name = where
    try:
        return getattr(import_module(module), name)(*arguments)
    except ImportError as error:
        raise DeviceError(f"device {device}: {error}: install it, or use another device") from error


def _found(device: str) -> tuple[tuple[str, str], list[Any]]:
    """Returns an engine's module and class, and the arguments of its constructor.

    Raises:
        DeviceError: if there is no engine of that name.
    """
    device, *options = device.split("#")
    kind, _, number = device.partition(":")
    if options and device not in _FIXABLE:
        known = ", ".join(_FIXABLE)
        raise DeviceError(f"device {device}: its shapes cannot be fixed: use one of {known}")
    if kind in _NUMBERED and re.fullmatch(r"\d{0,9}", number):
        return _NUMBERED[kind], [int(number or 0)]
    if device not in _ENGINES:
        known = ", ".join((*_ENGINES, *(f"{each}:0" for each in _NUMBERED)))
        raise DeviceError(f"device {device!r} is not known: use cpu, gpu, {known}")
    return _ENGINES[device], _options(device, options)


def _options(device: str, options: Sequence[str]) -> list[Any]:
    """Parses the options after a device's name: fixed shapes, and whether the CPU may help."""
    partly = device in _HELPED and list(options[-1:]) == [_PARTLY]
    fixed = options[:-1] if partly else options
    if len(fixed) > 1:
        raise InputError(f"device {device}: {len(fixed)} lists of shapes: give one, as 8/32x1024")
    if not partly:
        return [Shapes.parse(each) for each in fixed]
    return [Shapes.parse(fixed[0]) if fixed else None, True]


@cache
def best_gpu() -> str | None:
    """Returns the first of `GPU_ENGINES` that is usable here; None if there is none."""
    for name in GPU_ENGINES:
        with suppress(DeviceError):
            return engine(name).name
    return None
