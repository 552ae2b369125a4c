"""OpenVINO on Intel GPUs."""

from __future__ import annotations

import openvino as ov

from edgespec.errors import DeviceError
from edgespec.runtime.engines.base import CallSizes, Executable, Footprint, StageFile, StageSizes
from edgespec.runtime.engines.cpu.openvino import CONVERTER_BYTES, compile_for
from edgespec.runtime.engines.host import (
    MIB,
    activation_bytes,
    available_bytes,
    layer_cache_bytes,
    score_bytes,
)
from edgespec.runtime.engines.openvino_core import core
from edgespec.runtime.shapes import ANY_SHAPES

_DRIVER = (
    "install its driver (Debian, Ubuntu: apt-get install intel-opencl-icd), or use --device cpu"
)
_GRAPH_BYTES = 8 * MIB


class OpenVinoGpu:
    """OpenVINO's GPU plug-in, on the first Intel GPU.

    The cache stays on the host and is transferred in every call; for an integrated GPU this is
    cheap. It was never run on hardware. Calls hold several texts, as those of the CPU's plug-in do,
    whose caches it has.

    Raises:
        DeviceError: if there is no such GPU, or its driver is missing.
    """

    name = "openvino:gpu"
    version: str = ov.__version__
    library_bytes = 22 * MIB  # as on the CPU; not measured
    shapes = ANY_SHAPES
    variant: str | None = None
    keeps_states = False
    several_texts = True
    integer_caches = False

    def __init__(self) -> None:
        try:
            self.hardware = str(core().get_property("GPU", "FULL_DEVICE_NAME"))
            self._integrated = "INTEGRATED" in str(core().get_property("GPU", "DEVICE_TYPE"))
            self._bytes = int(core().get_property("GPU", "GPU_DEVICE_TOTAL_MEM_SIZE"))
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise DeviceError(
                f"device {self.name}: no Intel GPU can be used ({reason}): {_DRIVER}"
            ) from error
        self.memory = "cpu" if self._integrated else "gpu"

    def available_bytes(self) -> int:
        """See `Engine`. For a GPU with its own memory it is the total: the free part is unknown."""
        return available_bytes() if self._integrated else self._bytes

    def compile(self, stage: StageFile, threads: int) -> Executable:
        """See `Engine`."""
        # float16 is the default, and is not what was exported.
        config = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        return compile_for("GPU", stage, config)

    def footprint(self, stage: StageSizes, calls: CallSizes) -> Footprint:
        """See `Engine`. This is calculated, not measured."""
        return Footprint(
            weights=stage.matmul_bytes + stage.embedding_bytes,
            repacked=0,
            mapped=0,
            logits=calls.logit_rows * (4 * stage.vocab + stage.result_bytes)
            + calls.rows * stage.passed_bytes,
            workspace=stage.layers * layer_cache_bytes(stage, calls) + _GRAPH_BYTES,
            shared=3 * score_bytes(stage, calls) + activation_bytes(stage, calls),
            loading=CONVERTER_BYTES,
        )
