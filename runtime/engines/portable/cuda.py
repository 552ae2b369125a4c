"""NVIDIA's GPUs, with CUDA."""

from __future__ import annotations

import contextlib
import ctypes
import io
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import onnxruntime as ort

from edgespec.errors import DeviceError, installing
from edgespec.runtime.engines.libraries import REINSTALL
from edgespec.runtime.engines.portable.device import Gpu

_INSTALL = installing("cuda")
_NO_DRIVER = "install NVIDIA's driver, or use --device webgpu:0"
_NAME_BYTES = 256
_THREAD = "edgespec-cuda"
_Made = TypeVar("_Made")


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
    captures = True
    # A bias excludes sinks.
    fused = frozenset({"float16", "norms", "soft_cap", "recurrence", "halves"})

    def __init__(self, number: int) -> None:
        driver = _driver()
        require_libraries()
        self.number = number
        self.name = f"cuda:{number}"
        self.hardware, self.own_bytes = _described(driver, number)

    def call(self, work: Callable[..., _Made], *arguments: Any) -> _Made:
        """See `Gpu`: ONNX Runtime records calls, and allocates workspace, for each thread anew.

        While one is recorded, no other thread may use the GPU either. What this thread calls while
        it works, such as a move of rows in the middle of a queue, it does at once.
        """
        if threading.current_thread().name.startswith(_THREAD):
            return work(*arguments)
        return _thread().submit(work, *arguments).result()

    def select(self, options: Any) -> Any:
        """See `Gpu`."""
        settings = {
            "device_id": str(self.number),
            "use_tf32": "0",  # TF32 would round float32 to 10 bits of mantissa
            "arena_extend_strategy": "kSameAsRequested",  # allocates no more than was planned
            "enable_cuda_graph": "1",  # a pass has a thousand launches, each dearer than its work
        }
        return [(self.provider, settings)]


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, _THREAD)


@cache
def require_libraries() -> None:
    """Loads CUDA's libraries, from the wheels of the extra `cuda` or from the system.

    Raises:
        DeviceError: if ONNX Runtime was built without CUDA, or a library is missing.
    """
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        raise DeviceError(
            f"device cuda: this build of ONNX Runtime {ort.__version__} has no CUDA: "
            f"{REINSTALL} onnxruntime-gpu && {_INSTALL}"
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


def _driver() -> Any:
    """Loads and initializes the driver's library."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError as error:
        raise DeviceError(f"device cuda: no NVIDIA driver ({error}): {_NO_DRIVER}") from error
    status = driver.cuInit(0)
    if status:
        raise DeviceError(
            f"device cuda: the NVIDIA driver does not start (error {status}): {_NO_DRIVER}"
        )
    return driver


def _described(driver: Any, number: int) -> tuple[str, int]:
    """Returns a GPU's name and the free bytes of its memory."""
    count = ctypes.c_int()
    _require(driver.cuDeviceGetCount(ctypes.byref(count)))
    if number >= count.value:
        raise DeviceError(
            f"device cuda:{number}: this machine has {count.value} CUDA GPUs: use a lower number"
        )
    device = ctypes.c_int()
    context = ctypes.c_void_p()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    free = ctypes.c_size_t()
    total = ctypes.c_size_t()
    _require(driver.cuDeviceGet(ctypes.byref(device), number))
    _require(driver.cuDeviceGetName(name, _NAME_BYTES, device))
    # Free memory can only be read in a context; this one is also the one that ONNX Runtime uses.
    _require(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    try:
        _require(driver.cuCtxPushCurrent_v2(context))
        try:
            _require(driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
    return name.value.decode(errors="replace"), free.value


def _require(status: int) -> None:
    if status:
        raise DeviceError(f"device cuda: the NVIDIA driver failed (error {status}): {_NO_DRIVER}")
