"""What NVIDIA's driver tells about its GPUs: names and memory."""

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
        name: of the product.
        total: bytes of its memory.
        free: bytes of it that are not in use.
    """

    name: str
    total: int
    free: int


def load() -> Any:
    """The driver's library, initialized.

    Raises:
        DeviceError: if there is none, or it finds no GPU.
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
    """How many GPUs this process may use; they are numbered as ONNX Runtime does."""
    found = ctypes.c_int()
    _require(driver.cuDeviceGetCount(ctypes.byref(found)))
    return found.value


def describe(driver: Any, number: int) -> CudaGpu:
    """A GPU and its memory of the moment.

    Raises:
        DeviceError: if there is none of that number, or the driver fails.
    """
    gpus = count(driver)
    if number >= gpus:
        raise DeviceError(f"device cuda:{number}: this machine has {gpus} such: use a lower number")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _require(driver.cuDeviceGet(ctypes.byref(device), number))
    _require(driver.cuDeviceGetName(name, _NAME_BYTES, device))
    # The context that ONNX Runtime will use, too; it is asked for what is free.
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
