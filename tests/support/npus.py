"""Fake NPUs for machines without one."""

from __future__ import annotations

from edgespec.bundle import NPU
from edgespec.runtime.deployment import device_names
from edgespec.runtime.engines import engine
from edgespec.runtime.engines.cpu.onnxruntime import OnnxRuntimeCpu
from edgespec.runtime.engines.npu.shared import FewShapes
from edgespec.runtime.shapes import Shapes

NAME = "fake:npu"
COMPILER = "a compiler 1.0"


class NpuOnCpu(OnnxRuntimeCpu):
    """Takes the files of an NPU, and computes on the CPU."""

    name = NAME
    variant = NPU
    keeps_states = False
    several_texts = False
    integer_caches = False


class NpuToPlan(FewShapes):
    """An NPU as far as planning is concerned."""

    memory = "cpu"
    variant = NPU
    keeps_states = False
    several_texts = False
    integer_caches = False
    library_bytes = 0
    hardware, version = "none", "1.0"

    def __init__(self, shapes=None):
        super().__init__(NAME, shapes)

    def available_bytes(self):
        return 1 << 40

    def takes(self, device, compiler):
        return (device, compiler) == (NAME, COMPILER)


def with_npu(monkeypatch):
    """Make this machine have an NPU, under either name."""

    def found(name):
        base, *shapes = name.split("#")
        return NpuToPlan(*map(Shapes.parse, shapes)) if base == NAME else engine(name)

    monkeypatch.setattr(device_names, "engine", found)
