"""GPUs of any vendor, with WebGPU: a plug-in of ONNX Runtime that needs only a graphics driver."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnxruntime as ort

from edgespec.errors import DeviceError
from edgespec.runtime.engines.distributions import require_one_distribution
from edgespec.runtime.engines.gpu.onnxruntime_gpu import OnnxRuntimeGpu
from edgespec.runtime.engines.host import MIB, available_bytes
from edgespec.runtime.engines.portable.webgpu import (
    described,
    own_memory,
    require_adapter,
)
from edgespec.runtime.engines.portable.webgpu import library as _library

_PACKAGE = "onnxruntime-ep-webgpu"
_DRIVER = "install its driver (Debian, Ubuntu: apt-get install libvulkan1 mesa-vulkan-drivers)"

# Assumed if the system does not report a GPU's memory: GPUs of the last ten years have as much.
_LEAST_BYTES = 2 << 30

_DRM = Path("/sys/class/drm")


class WebGpu(OnnxRuntimeGpu):
    """The GPU that the plug-in chooses: the most powerful one.

    Args:
        number: must be 0, since the plug-in offers no choice.

    Raises:
        DeviceError: if the plug-in, a driver or a GPU is missing.
    """

    library_bytes = 48 * MIB
    provider = "WebGpuExecutionProvider"
    kind = "webgpu"
    number = 0

    def __init__(self, number: int = 0) -> None:
        require_one_distribution()
        if number:
            raise DeviceError(
                f"device webgpu:{number}: the plug-in chooses the GPU itself: use webgpu:0"
            )
        self._device = _device()
        require_adapter()
        self.name = "webgpu:0"
        self.version = f"{ort.__version__}+{version(_PACKAGE)}"
        hardware = self._device.device
        self._own_bytes = own_memory(
            hardware.type.name, hardware.vendor_id, hardware.metadata, _DRM
        )
        self.memory = "cpu" if self._own_bytes is None else "gpu"
        assumed = " (memory not told: 2 GiB assumed)" if self._own_bytes == _LEAST_BYTES else ""
        self.hardware = described(hardware) + assumed

    def available_bytes(self) -> int:
        """See `Engine`.

        WebGPU does not report free memory. For a GPU that shares the host's memory it is the
        host's. Else it is what the system reports (Windows: the total; Linux with AMD: what was
        free at the start), or 2 GiB if it reports nothing. `--memory gpu=...` overrides it.
        """
        return available_bytes() if self._own_bytes is None else self._own_bytes

    def select(self, options: Any) -> Any:
        """See `OnnxRuntimeGpu`."""
        settings = {"ep.webgpuexecutionprovider.powerPreference": "high-performance"}
        options.add_provider_for_devices([self._device], settings)


def _device() -> Any:
    name = _library()
    found = [each for each in ort.get_ep_devices() if each.ep_name == name]
    if not found:
        raise DeviceError(f"device webgpu:0: no GPU was found: {_DRIVER}, or use --device cpu")
    # The plug-in uses the most powerful GPU, whichever it is given, so this one should be it.
    return max(found, key=lambda each: each.device.metadata.get("Discrete") == "1")
