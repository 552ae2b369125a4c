"""The GPUs that tests of engines run on."""

from __future__ import annotations

import pytest
from gpus import GPUS, usable, with_cache_on_device


@pytest.fixture(scope="module", params=GPUS)
def gpu(request, gpu_in_software):
    """The name of a device."""
    return usable(request.param)


@pytest.fixture(scope="module")
def onnx_gpu(gpu):
    """An engine that keeps its cache on the device."""
    return with_cache_on_device(gpu)
