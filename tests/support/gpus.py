"""GPUs that tests run on, where this machine has them or a driver in software."""

from __future__ import annotations

import pytest

from edgespec.errors import DeviceError
from edgespec.runtime.engines import engine

GPUS = ("webgpu:0", "cuda:0", "openvino:gpu")
CPU = "onnxruntime:cpu"


def usable(name):
    """Returns the name of a device; what this machine does not have is skipped with the reason."""
    try:
        return engine(name).name
    except DeviceError as error:
        pytest.skip(str(error))


def with_cache_on_device(name):
    """Returns an engine that keeps its cache on the device; others are skipped."""
    if name == "openvino:gpu":
        pytest.skip("openvino:gpu keeps its cache on the host")
    return engine(name)
