"""What stands for an NPU where there is none."""

from __future__ import annotations

from edgespec.bundle import NPU
from edgespec.runtime.engines.onnxruntime import OnnxRuntimeCpu


class NpuOnCpu(OnnxRuntimeCpu):
    """Takes what an NPU takes, and computes it on the CPU."""

    name = "fake:npu"
    variant = NPU
