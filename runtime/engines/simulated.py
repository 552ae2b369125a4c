"""A simulated device: the results are real, the times are those stated for the device.

ONNX Runtime computes the results on this machine's CPU, and must finish before the stated time is
over. So bundles must be small. See docs/simulator.md.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import numpy as np

from edgespec.errors import DeviceError
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.base import (
    Cache,
    CallSizes,
    Executable,
    Footprint,
    StageFile,
    StageOutputs,
    StageSizes,
    row_count,
)
from edgespec.runtime.engines.cpu.onnxruntime import OnnxRuntimeCpu
from edgespec.runtime.shapes import ANY_SHAPES
from edgespec.runtime.simulation import HOST, load

# More threads would take cores from other simulated devices that run at the same time.
_THREADS = 1

_log = logging.getLogger(__name__)


class SimulatedEngine:
    """A device of a simulated machine.

    Args:
        place: DEVICE@MACHINE, where MACHINE is what `simulation.load` accepts.

    Attributes:
        late: number of calls that took longer than stated, without the first of each shape.

    Raises:
        DeviceError: if the machine has no such device.
        InputError: if the machine cannot be read.
    """

    shapes = ANY_SHAPES
    variant: str | None = None
    integer_products = True
    keeps_states = True
    several_texts = False
    integer_caches = True

    def __init__(self, place: str) -> None:
        self.device, _, reference = place.partition("@")
        self.machine = load(reference)
        if self.device not in self.machine.devices:
            raise DeviceError(
                f"device {self.device!r} is not known: the simulated machine {reference} has "
                f"{', '.join(self.machine.devices)}"
            )
        self._real = OnnxRuntimeCpu()
        self.name = f"simulated:{place}"
        self.memory = HOST if self.machine.devices[self.device].gib is None else self.device
        self.hardware = self.machine.devices[self.device].chip
        self.version = f"{self.machine.digest} on {self._real.version}"
        self.library_bytes = self._real.library_bytes
        self.late = 0

    def available_bytes(self) -> int:
        """See `Engine`."""
        return self.machine.memory_bytes(self.memory)

    def footprint(self, stage: StageSizes, calls: CallSizes) -> Footprint:
        """See `Engine`; this is what ONNX Runtime needs for such a stage on a CPU."""
        return self._real.footprint(stage, calls)

    def compile(self, stage: StageFile, threads: int) -> SimulatedExecutable:
        """See `Engine`; `threads` is ignored, since the stated times include the device's threads.

        Raises:
            DeviceError: if the machine states no model for the role, or ONNX Runtime refuses the
                stage.
        """
        if stage.role not in self.machine.models:
            raise DeviceError(
                f"{self.name}: the machine states no model for {stage.role!r}: add one"
            )
        return SimulatedExecutable(self._real.compile(stage, _THREADS), stage, self)

    def note_late(self, seconds: float) -> None:
        """Counts a call that took longer than its stated seconds, and warns of the first."""
        self.late += 1
        if self.late == 1:
            _log.warning(
                "%s: a call of %.2f simulated ms took longer than that to compute. If this happens "
                "often, simulated speeds are too low: use a smaller bundle, or state a larger "
                "model", self.name, 1e3 * seconds,
            )  # fmt: skip


class SimulatedExecutable:
    """A stage whose calls take the stated time, or longer while its device is busy."""

    def __init__(self, real: Executable, stage: StageFile, engine: SimulatedEngine) -> None:
        self._real = real
        self._stage = stage
        self._engine = engine
        self._seconds: dict[tuple[int, int, int], float] = {}  # by shape

    def new_cache(self, capacity: int, most: int) -> Cache:
        """See `Executable`."""
        return self._real.new_cache(capacity, most)

    def run(self, feeds: Mapping[str, Array], cache: Cache) -> StageOutputs:
        """See `Executable`."""
        shape = (row_count(feeds), len(feeds.get("logit_rows", ())), cache.capacity)
        known = shape in self._seconds
        if not known:
            self._seconds[shape] = self._stated_seconds(feeds)
        clock, seconds = self._engine.machine.clock, self._seconds[shape]
        with clock.call(self._engine.device, seconds) as left:
            outputs = self._real.run(feeds, cache)
            if known and left() == 0:  # ONNX Runtime plans memory in the first call of a shape
                self._engine.note_late(seconds)
        return outputs

    def _stated_seconds(self, feeds: Mapping[str, Array]) -> float:
        """Returns the stated seconds of a call, including transfers between host and device."""
        stage, machine, device = self._stage, self._engine.machine, self._engine.device
        model = machine.models[stage.role]
        hidden = ("hidden", "next_hidden", "last_hidden")
        widths = dict.fromkeys(hidden, model.hidden) | {"logits": model.vocab}
        rows = {"S": row_count(feeds), "R": len(feeds.get("logit_rows", ()))}
        moved = 0
        for name, feed in feeds.items():
            moved += feed.itemsize * rows["S"] * widths[name] if name in widths else feed.nbytes
        for each in stage.results:
            width = widths.get(each.name, math.prod(each.shape))
            moved += np.dtype(each.dtype).itemsize * rows[each.rows] * width
        start, stop = (model.stretched(end, stage.layout) for end in (stage.start, stage.stop))
        computing = machine.seconds(device, stage.role, range(start, stop), rows["S"])
        return computing + machine.transfer_seconds(device, moved)
