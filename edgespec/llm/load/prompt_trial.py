"""Whether a GPU reads prompts through layers that lie on the host, which is tried there once.

The weights of these layers are copied there for each pass over a prompt, which pays or not by what
the processor and the GPU do, and by what lies between them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edgespec.errors import DeviceError, InputError
from edgespec.llm.load.trials import keep_trial, kept_trial, logit_distance, trial_logits
from edgespec.runtime.arrays import Floats
from edgespec.runtime.plan import LONG_CALL
from edgespec.runtime.sequences.model import Model

if TYPE_CHECKING:
    from edgespec.runtime.engines.portable import Device

# The processor alone rounds activations to 8 bits, which moves logits behind random tokens by 0.2,
# and some rows by far more. What computes something else is several deviations off in all rows.
_MOST = 0.5
_WANTED = range(LONG_CALL - 64, LONG_CALL)  # rows whose logits are compared

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PromptTrial:
    """What a target on two devices did with a prompt.

    Attributes:
        hardware: the product of the device of the last layers.
        version: of the library that computed there.
        layers: number of layers on the host.
        distance: the largest difference of a logit where all layers were computed on the device, in
            the median row and in standard deviations of logits; None: there were none, or no
            numbers.
        here: seconds a row where these layers were computed on the host.
        there: likewise on the device.
    """

    name: ClassVar[str] = "prompts"

    hardware: str
    version: str
    layers: int
    distance: float | None
    here: float
    there: float

    @property
    def passed(self) -> bool:
        """Whether prompts are read on the device."""
        return self.distance is not None and self.distance <= _MOST and self.there < self.here

    @property
    def verdict(self) -> str:
        """Where prompts are read, and why."""
        if self.distance is None or self.distance > _MOST:
            return "on the CPU, since logits differ otherwise"
        times = f"{1e3 * self.there:.3g} ms a token there, {1e3 * self.here:.3g} on the CPU"
        return f"{'there' if self.passed else 'on the CPU'}: {times}"


def reads_prompts(
    graph: Path,
    device: Device,
    layers: int,
    vocabulary: int,
    opened: Callable[[bool], Model],
    clock: Callable[[], float] = time.perf_counter,
) -> bool:
    """Returns whether a device reads prompts through layers on the host, as was tried before.

    What a device refuses is tried again the next time: it may have had no memory left.

    Args:
        graph: the target's portable graph, or where it would be.
        device: the device.
        layers: number of the layers.
        vocabulary: number of the target's tokens.
        opened: opens the target, with long calls on the device if it is asked to.
        clock: tells seconds.

    Raises:
        DeviceError: if the target is refused without that.
    """
    trial = kept_trial(PromptTrial, graph)
    facts = (device.hardware or "", device.version or "", layers)
    if trial is None or (trial.hardware, trial.version, trial.layers) != facts:
        try:
            found, there = _read(opened(True), vocabulary, clock)
        except (DeviceError, InputError) as error:
            _log.warning("prompts are read on the CPU for now: %s", error)
            return False
        expected, here = _read(opened(False), vocabulary, clock)
        trial = PromptTrial(*facts, logit_distance(found, expected, np.median), here, there)
        keep_trial(graph, trial)
    _log.info("prompts of a target on the CPU and %s are read %s", device.name, trial.verdict)
    return trial.passed


def _read(model: Model, vocabulary: int, clock: Callable[[], float]) -> tuple[Floats, float]:
    """Reads a prompt, and closes the model; returns the last rows' logits, and seconds a row.

    A pass over it comes before, in which weights are read from the disk and plans are made.
    """
    try:
        trial_logits(model, vocabulary, LONG_CALL, _WANTED)
        begin = clock()
        found = trial_logits(model, vocabulary, LONG_CALL, _WANTED)
        return found, (clock() - begin) / LONG_CALL
    finally:
        model.close()
