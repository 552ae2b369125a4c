"""Whether a role computes in half precision on a device, which is tried when it is first there.

Products of large numbers, or sums of many, may leave the range of half precision, and which do
depends on the model. So a text is read in both, and where the logits are far apart, or are no
numbers, the role stays in single precision there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from edgespec.errors import DeviceError
from edgespec.llm.load.trials import keep_trial, kept_trial, logit_distance, trial_logits
from edgespec.runtime.arrays import Floats
from edgespec.runtime.sequences.model import Model

if TYPE_CHECKING:
    from edgespec.runtime.engines.portable import Device

_MOST = 0.1  # as far as logits are apart where activations are rounded to 8 bits
_ROWS = 48

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HalvesTrial:
    """What a role did in half precision on a device.

    Attributes:
        hardware: the device's product.
        version: of the library that computed there.
        distance: the largest difference of a logit from that in single precision, in standard
            deviations of logits; None: there were none, or no numbers.
    """

    name: ClassVar[str] = "halves"

    hardware: str
    version: str
    distance: float | None

    @property
    def passed(self) -> bool:
        """Whether the role computes in half precision there."""
        return self.distance is not None and self.distance <= _MOST


def computes_in_halves(
    graph: Path, device: Device, vocabulary: int, opened: Callable[[bool], Model]
) -> bool:
    """Returns whether a role computes in half precision on a device, as was tried there before.

    What a device refuses is tried again the next time: it may have had no memory left.

    Args:
        graph: its portable graph, which has that form, too.
        device: the device.
        vocabulary: number of the role's tokens.
        opened: opens the role, in half precision if it is asked to.

    Raises:
        DeviceError: if the device refuses the role in single precision.
    """
    trial = kept_trial(HalvesTrial, graph)
    there = (device.hardware or "", device.version or "")
    if trial is None or (trial.hardware, trial.version) != there:
        single = _logits(opened(False), vocabulary)
        try:
            half = _logits(opened(True), vocabulary)
        except DeviceError as error:
            _log.warning("single precision for now: half precision was refused (%s)", error)
            return False
        trial = HalvesTrial(*there, logit_distance(half, single))
        keep_trial(graph, trial)
    if not trial.passed:
        far = "no numbers" if trial.distance is None else f"{trial.distance:.2f} deviations apart"
        _log.warning(
            "%s computes in single precision: in half precision this model's logits are %s",
            device.name,
            far,
        )
    return trial.passed


def _logits(model: Model, vocabulary: int) -> Floats:
    """Reads a text, and closes the model; returns the logits of its rows."""
    try:
        return trial_logits(model, vocabulary, _ROWS, range(_ROWS))
    finally:
        model.close()
