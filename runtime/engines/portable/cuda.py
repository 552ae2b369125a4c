"""NVIDIA's GPUs, with CUDA."""

from __future__ import annotations

import contextlib
import ctypes
import io
import sys
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime as ort

from edgespec.errors import DeviceError
from edgespec.runtime.engines.portable import cuda_driver
from edgespec.runtime.engines.portable.device import Gpu

_INSTALL = 'pip install "edgespec[cuda]"'


class Cuda(Gpu):
    """An NVIDIA GPU.

    Args:
        number: number of the GPU in CUDA's order, which `CUDA_VISIBLE_DEVICES` affects.

    Raises:
        DeviceError: if a driver, a library or the GPU is missing.
    """

    provider = "CUDAExecutionProvider"
    kind = "cuda"
    version: str = ort.__version__

    def __init__(self, number: int) -> None:
        driver = cuda_driver.load()
        require_libraries()
        self.number = number
        self.name = f"cuda:{number}"
        found = cuda_driver.describe(driver, number)
        self.hardware, self.own_bytes = found.name, found.free

    def select(self, options: Any) -> Any:
        """See `Gpu`."""
        settings = {
            "device_id": str(self.number),
            "use_tf32": "0",  # TF32 would round float32 to 10 bits of mantissa
            "arena_extend_strategy": "kSameAsRequested",  # allocates no more than was planned
        }
        return [(self.provider, settings)]


@cache
def require_libraries() -> None:
    """Loads CUDA's libraries, from the wheels of the extra `cuda` or from the system.

    Raises:
        DeviceError: if ONNX Runtime was built without CUDA, or a library is missing.
    """
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        raise DeviceError(
            f"device cuda: this build of ONNX Runtime {ort.__version__} has no CUDA: "
            f"pip uninstall -y onnxruntime && {_INSTALL}"
        )
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the names of missing libraries
        ort.preload_dlls()
    library = (
        "onnxruntime_providers_cuda.dll"
        if sys.platform == "win32"
        else "libonnxruntime_providers_cuda.so"
    )
    ort.set_default_logger_severity(4)  # failures are raised, so no log is needed
    folder = Path(ort.__file__).parent / "capi"
    try:
        # Loaded here because the error names the missing library, which ONNX Runtime only logs. The
        # provider needs the symbols of the shared library.
        if sys.platform != "win32":
            ctypes.CDLL(str(folder / "libonnxruntime_providers_shared.so"), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / library))
    except OSError as error:
        raise DeviceError(
            f"device cuda: a library of CUDA is missing ({error}): {_INSTALL}"
        ) from error
