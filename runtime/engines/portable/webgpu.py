"""GPUs of any vendor, with WebGPU: a plug-in of ONNX Runtime that needs only a graphics driver."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from edgespec.errors import DeviceError, installing
from edgespec.runtime.engines.ort_session import open_session, session_options, silenced
from edgespec.runtime.engines.portable.device import Gpu
from edgespec.runtime.engines.portable.transfers import Tensors, small_graph

_PACKAGE = "onnxruntime-ep-webgpu"
_INSTALL = installing("webgpu")
_DRIVER = "install its driver (Debian, Ubuntu: apt-get install libvulkan1 mesa-vulkan-drivers)"

# Assumed if the system does not report a GPU's memory: GPUs of the last ten years have as much.
_LEAST_BYTES = 2 << 30

_FLOAT = int(TensorProto.FLOAT)
_LONG = 32
"""Rows from which fused attention has another shader."""

_DRM = Path("/sys/class/drm")
_MIB = 1 << 20
_NVIDIA = 0x10DE


class WebGpu(Gpu):
    """The GPU that the plug-in chooses: the most powerful one.

    Args:
        number: must be 0, since the plug-in offers no choice.

    Raises:
        DeviceError: if the plug-in, a driver or a GPU is missing.
    """

    provider = "WebGpuExecutionProvider"
    kind = "webgpu"
    # Its attention ignores soft caps.
    fused = frozenset({"float32", "float16", "norms", "sinks", "recurrence", "halves"})

    def __init__(self, number: int) -> None:
        if number:
            raise DeviceError(
                f"device webgpu:{number}: the plug-in chooses the GPU itself: use webgpu:0"
            )
        self._device = _device()
        require_adapter()
        self.name = "webgpu:0"
        self.version = f"{ort.__version__}+{version(_PACKAGE)}"
        hardware = self._device.device
        kind = hardware.type.name
        vendor = hardware.vendor_id
        self.own_bytes = own_memory(kind, vendor, hardware.metadata, _DRM)
        self.half = None if _has_halves() else False
        if not _is_right_in_long_calls():
            self.fused_rows = _LONG // 2
        assumed = " (memory not told: 2 GiB assumed)" if self.own_bytes == _LEAST_BYTES else ""
        self.hardware = gpu_name(hardware) + assumed

    def select(self, options: Any) -> Any:
        """See `Gpu`."""
        # ONNX Runtime puts the provider's prefix before the names itself.
        settings = {
            "powerPreference": "high-performance",
            "enableInt64": "1",  # of tokens that a call reads where another found them
            "validationMode": "wgpuOnly",  # ONNX Runtime's own checks take a fifth of a pass
        }
        options.add_provider_for_devices([self._device], settings)


def own_memory(kind: str, vendor: int, metadata: Mapping[str, str], drm: Path) -> int | None:
    """Returns the bytes of a GPU's own memory, as far as the system reports them.

    Args:
        kind: GPU, or CPU for a software driver.
        vendor: PCI number of the vendor.
        metadata: the device's metadata from ONNX Runtime.
        drm: the folder in which Linux describes graphics cards.

    Returns:
        The bytes, or None for a device that uses the host's memory.
    """
    discrete = metadata.get("Discrete", "1" if vendor == _NVIDIA else "")
    if kind != "GPU" or sys.platform == "darwin" or discrete == "0":
        return None
    size = _told_memory(metadata, drm)
    if discrete == "1":
        return _LEAST_BYTES if size is None else size
    return None if size is None or size < _LEAST_BYTES else size


def _told_memory(metadata: Mapping[str, str], drm: Path) -> int | None:
    size = metadata.get("DxgiVideoMemory", "").split()  # Windows: "8192 MB"
    if size and size[0].isdigit():
        return int(size[0]) * _MIB
    card = drm / f"card{metadata.get('card_idx')}" / "device"
    try:  # Linux, AMD
        total, used = (int((card / f"mem_info_vram_{n}").read_text()) for n in ("total", "used"))
    except (OSError, ValueError):
        return None
    return total - used


def gpu_name(hardware: Any) -> str:
    """Returns the device's name; Linux reports only its PCI numbers."""
    if hardware.type.name != "GPU":
        return "a driver in software, on the CPU"
    numbers = f"GPU {hardware.vendor_id:#06x}:{hardware.device_id:#06x}"
    name = hardware.metadata.get("Description") or f"{hardware.vendor} {numbers}"
    return " ".join(str(name).split())


@cache
def register_plugin() -> str:
    """Registers the plug-in, once per process, and returns its execution provider's name."""
    try:
        import onnxruntime_ep_webgpu as plugin
    except ImportError as error:
        raise DeviceError(f"device webgpu:0: {_PACKAGE} is not installed: {_INSTALL}") from error
    if sys.platform == "linux":
        try:
            ctypes.CDLL("libvulkan.so.1")
        except OSError as error:  # checked here, since the plug-in would write to stderr
            raise DeviceError(
                f"device webgpu:0: the Vulkan library is missing ({error}): {_DRIVER}"
            ) from error
    ort.set_default_logger_severity(4)  # failures are raised, so no log is needed
    try:
        ort.register_execution_provider_library("edgespec.webgpu", plugin.get_library_path())
    except Exception as error:  # its exceptions share no base class but this
        raise DeviceError(
            f"device webgpu:0: ONNX Runtime {ort.__version__} refused {_PACKAGE} "
            f"{version(_PACKAGE)} ({error}): pip install --upgrade {_PACKAGE}"
        ) from error
    return str(plugin.get_ep_name())


def _device() -> Any:
    name = register_plugin()
    found = [each for each in ort.get_ep_devices() if each.ep_name == name]
    if not found:
        raise DeviceError(f"device webgpu:0: no GPU was found: {_DRIVER}, or use --device cpu")
    # The plug-in uses the most powerful GPU, whichever it is given, so this one should be it.
    return max(found, key=lambda each: each.device.metadata.get("Discrete") == "1")


@cache
def require_adapter() -> None:
    """Tries a session: without an adapter the library would abort at the first tensor."""
    node = helper.make_node("Neg", ["in"], ["out"])
    tensor = (int(TensorProto.FLOAT), [1])
    graph = small_graph([node], {"in": tensor}, {"out": tensor})
    options = session_options(threads=1)
    options.log_severity_level = 4
    options.add_provider_for_devices([_device()], {})
    try:
        with silenced(2):  # the Vulkan loader writes to stderr
            ort.InferenceSession(graph, options, enable_fallback=0)
    except Exception as error:  # its exceptions share no base class but this
        reason = str(error).strip().rpartition("false. ")[2]
        raise DeviceError(f"device webgpu:0: no GPU could be used ({reason}): {_DRIVER}") from error


@cache
def _is_right_in_long_calls() -> bool:
    """Whether fused attention is right in calls of many rows, as it is not in SwiftShader."""
    size = 16
    past = [1, 1, _LONG, size]
    inputs: Tensors = {
        "qkv": (_FLOAT, [1, _LONG, 3 * size]),
        "keys": (_FLOAT, past),
        "values": (_FLOAT, past),
        "end": (int(TensorProto.INT32), [1]),
        "total": (int(TensorProto.INT32), [1]),
    }
    outputs: Tensors = {"y": (_FLOAT, [1, _LONG, size])}
    outputs |= {f"{name}.after": (_FLOAT, past) for name in ("keys", "values")}
    node = helper.make_node(
        "GroupQueryAttention",
        ["qkv", "", "", "keys", "values", "end", "total"],
        [*outputs],
        domain="com.microsoft",
        num_heads=1,
        kv_num_heads=1,
    )
    feeds = {
        "qkv": np.random.default_rng(0).normal(size=(1, _LONG, 3 * size)).astype(np.float32),
        "keys": np.zeros(past, np.float32),
        "values": np.zeros(past, np.float32),
        "end": np.array([_LONG - 1], np.int32),
        "total": np.array([_LONG], np.int32),
    }
    found = []
    for devices in ([_device()], []):
        options = session_options(threads=1)
        options.log_severity_level = 4
        if devices:
            options.add_provider_for_devices(devices, {})
        session = open_session(small_graph([node], inputs, outputs), options)
        found.append(session.run(["y"], feeds)[0])
    return bool(abs(found[0] - found[1]).max() < 1e-2)


@cache
def _has_halves() -> bool:
    """Whether the GPU can compute with numbers in half precision."""
    nodes = [
        helper.make_node("Cast", ["in"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["half"], ["out"], to=TensorProto.FLOAT),
    ]
    tensor = int(TensorProto.FLOAT), [1]
    options = session_options(threads=1)
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # keeps both
    options.add_provider_for_devices([_device()], {})
    session = open_session(small_graph(nodes, {"in": tensor}, {"out": tensor}), options)
    try:
        session.run(None, {"in": np.ones(1, np.float32)})
    except Exception:  # its exceptions share no base class but this
        return False
    return True
