"""NVIDIA GPUs, with CUDA."""

from __future__ import annotations

from typing import Any

import onnxruntime as ort

from edgespec.runtime.engines.distributions import require_one_distribution
from edgespec.runtime.engines.gpu.onnxruntime_gpu import OnnxRuntimeGpu
from edgespec.runtime.engines.host import MIB
from edgespec.runtime.engines.portable import cuda_driver
from edgespec.runtime.engines.portable.cuda import require_libraries


class Cuda(OnnxRuntimeGpu):
    """An NVIDIA GPU.

    Args:
        number: number of the GPU in CUDA's order, which `CUDA_VISIBLE_DEVICES` affects.

    Raises:
        DeviceError: if a driver, a library or the GPU is missing.
    """

    # An estimate, not measured.
    library_bytes = 512 * MIB
    provider = "CUDAExecutionProvider"
    kind = "cuda"

    def __init__(self, number: int = 0) -> None:
        require_one_distribution()
        self._driver = cuda_driver.load()
        require_libraries()
        self.number = number
        self.name = f"cuda:{number}"
        self.version: str = ort.__version__
        self.hardware = cuda_driver.describe(self._driver, number).name
        self.memory = f"gpu:{number}" if number else "gpu"

    def available_bytes(self) -> int:
        """See `Engine`; the driver tells it."""
        return cuda_driver.describe(self._driver, self.number).free

    def select(self, options: Any) -> Any:
        """See `OnnxRuntimeGpu`."""
        settings = {
            "device_id": str(self.number),
            "use_tf32": "0",  # TF32 would round float32 to 10 bits of mantissa
            "arena_extend_strategy": "kSameAsRequested",  # allocates no more than was planned
        }
        return [(self.provider, settings)]
