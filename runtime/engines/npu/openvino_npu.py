"""OpenVINO on Intel NPUs."""

from __future__ import annotations

import openvino as ov

from edgespec.bundle import NPU
from edgespec.errors import DeviceError
from edgespec.runtime.engines.base import Executable, StageFile
from edgespec.runtime.engines.cpu.openvino import compile_for
from edgespec.runtime.engines.host import MIB, available_bytes
from edgespec.runtime.engines.npu.shared import FewShapes
from edgespec.runtime.engines.openvino_core import core
from edgespec.runtime.shapes import Shapes

_DRIVER = "install its driver (Linux: github.com/intel/linux-npu-driver), or use --device cpu"


class OpenVinoNpu(FewShapes):
    """OpenVINO's NPU plug-in, which compiles for fixed shapes; the cache stays on the host.

    Args:
        shapes: shapes of calls; None: they are chosen later.

    Raises:
        DeviceError: if there is no such NPU, or its driver is missing.
        InputError: if there are too many shapes.
    """

    version: str = ov.__version__
    library_bytes = 22 * MIB  # as on the CPU; not measured
    memory = "cpu"
    variant: str | None = NPU
    keeps_states = False
    several_texts = False
    integer_caches = False

    def __init__(self, shapes: Shapes | None = None) -> None:
        super().__init__("openvino:npu", shapes)
        try:
            self.hardware = str(core().get_property("NPU", "FULL_DEVICE_NAME"))
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise DeviceError(
                f"device {self.name}: no Intel NPU can be used ({reason}): {_DRIVER}"
            ) from error

    def available_bytes(self) -> int:
        """See `Engine`."""
        return available_bytes()

    def compile(self, stage: StageFile, threads: int) -> Executable:
        """See `Engine`."""
        return compile_for("NPU", stage, {"PERFORMANCE_HINT": "LATENCY"}, self.shapes)

    def takes(self, device: str, compiler: str) -> bool:
        """See `Fixable`; no stages are compiled ahead of time for this engine."""
        return False
