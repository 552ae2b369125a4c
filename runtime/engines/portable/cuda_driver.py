"""Reads names and memory of GPUs from NVIDIA's driver."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

from edgespec.errors import DeviceError

_NO_DRIVER = "install NVIDIA's driver, or use --device webgpu:0"
_NAME_BYTES = 256


@dataclass(frozen=True)
class CudaGpu:
    """A GPU as the driver describes it.

    Attributes:
        name: name of the product.
        total: bytes of its memory.
        free: bytes of its memory that are free.
    """

    name: str
    total: int
    free: int


def load() -> Any:
    """Loads and initializes the driver's library.

    Raises:
        DeviceError: if there is no driver, or it finds no GPU.
    """
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


def count(driver: Any) -> int:
    """Returns how many GPUs this process may use; the numbers are those of ONNX Runtime."""
    found = ctypes.c_int()
    _require(driver.cuDeviceGetCount(ctypes.byref(found)))
    return found.value


def describe(driver: Any, number: int) -> CudaGpu:
    """Returns a GPU's name and its current memory.

    Raises:
        DeviceError: if there is no GPU of that number, or the driver fails.
    """
    gpus = count(driver)
    if number >= gpus:
        raise DeviceError(
            f"device cuda:{number}: this machine has {gpus} CUDA GPUs: use a lower number"
        )
    device, context = ctypes.c_int(), ctypes.c_void_p()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
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
    return CudaGpu(name.value.decode(errors="replace"), total.value, free.value)


def _require(status: int) -> None:
    if status:
        raise DeviceError(f"device cuda: the NVIDIA driver failed (error {status}): {_NO_DRIVER}")
