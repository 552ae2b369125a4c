"""Engines by name, imported only when asked for."""

from __future__ import annotations

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
from edgespec.runtime.engines.host import available_bytes

__all__ = [
    "CPU_ENGINES",
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
    "engine",
    "joined",
    "simulated_name",
]

_ENGINES = {
    "onnxruntime:cpu": ("edgespec.runtime.engines.onnxruntime", "OnnxRuntimeCpu"),
    "openvino:cpu": ("edgespec.runtime.engines.openvino", "OpenVinoCpu"),
}

CPU_ENGINES = ("onnxruntime:cpu", "openvino:cpu")
"""The candidates for the device `cpu`."""

_SIMULATED = "simulated:"
_SIMULATOR = ("edgespec.runtime.engines.simulated", "SimulatedEngine")


def simulated_name(device: str, machine: str) -> str:
    """The full device string of a machine's device that is to be simulated."""
    return f"{_SIMULATED}{device}@{machine}"


def engine(device: str) -> Engine:
    """The engine behind a full device string.

    Raises:
        DeviceError: if there is none of that name, or its library is not installed.
        InputError: if its machine is simulated and cannot be read.
    """
    place = device.removeprefix(_SIMULATED)
    if place == device and device not in _ENGINES:
        raise DeviceError(f"device {device!r} is not known: use cpu, {', '.join(_ENGINES)}")
    module, kind = _SIMULATOR if place != device else _ENGINES[device]
    arguments = [place] if place != device else []
    try:
        made: Engine = getattr(import_module(module), kind)(*arguments)
    except ImportError as error:
        raise DeviceError(f"device {device}: {error}: install it, or use another device") from error
    return made
