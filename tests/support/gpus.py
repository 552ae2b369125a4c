"""GPUs that tests run on, where this machine has them or a driver in software."""

from __future__ import annotations

import onnxruntime as ort
import pytest

from edgespec.runtime.engines.portable import examined
from edgespec.runtime.engines.portable.device import Gpu


def usable(name):
    """Returns the name of a device; what this machine does not have is skipped with the reason."""
    found = examined(name)
    if found.reason is not None:
        pytest.skip(found.reason)
    return name


class HostAsGpu(Gpu):
    """Runs what GPUs run, with pools that stay where the device has them, in the host's memory."""

    name = "webgpu:0"
    hardware = "none"
    version = ort.__version__
    own_bytes = 1 << 33
    provider, kind = "CPUExecutionProvider", "cpu"

    def __init__(self, number):
        assert number == 0

    def select(self, options):
        return [self.provider]


class FusedHostAsGpu(HostAsGpu):
    """The same, with fused operators."""

    fused = frozenset({"float32", "float16", "sinks", "soft_cap", "recurrence"})


class HalvesHostAsGpu(HostAsGpu):
    """The same, where graphs compute in half precision if their models allow it."""

    fused = FusedHostAsGpu.fused | {"halves"}
