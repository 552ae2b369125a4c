"""Lists the devices of this machine, and the reasons why others cannot be used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import count

from edgespec.errors import DeviceError
from edgespec.runtime.engines import (
    CHANGING_CPU_ENGINES,
    CPU_ENGINES,
    GPU_ENGINES,
    NPU_ENGINES,
    engine,
    is_experimental,
)


@dataclass(frozen=True)
class Device:
    """A device that an engine exists for.

    Attributes:
        name: `engine:device`, as users write it.
        hardware: product name of the device; None if it cannot be used.
        version: version of the engine's library.
        memory: the memory that it uses: cpu, or gpu for its own.
        free_bytes: free bytes of that memory, if known.
        reason: why it cannot be used, and a command that may help; None if it can.
    """

    name: str
    hardware: str | None = None
    version: str | None = None
    memory: str | None = None
    free_bytes: int | None = None
    reason: str | None = None

    @property
    def experimental(self) -> bool:
        """Whether its engine has never been run on real hardware."""
        return is_experimental(self.name)


def find_devices() -> list[Device]:
    """Returns all devices that there is an engine for, CPU devices first."""
    found = []
    for name in (*CPU_ENGINES, *CHANGING_CPU_ENGINES, *GPU_ENGINES, *NPU_ENGINES):
        found.append(_examined(name))
        kind, _, number = name.partition(":")
        if number.isdigit() and found[-1].reason is None:
            found += _further(kind, int(number) + 1)
    return found


def _further(kind: str, first: int) -> list[Device]:
    """Returns the usable devices of a kind whose numbers are `first` or higher."""
    found: list[Device] = []
    for number in count(first):
        device = _examined(f"{kind}:{number}")
        if device.reason is not None:
            break
        found.append(device)
    return found


def _examined(name: str) -> Device:
    try:
        found = engine(name)
        return Device(name, found.hardware, found.version, found.memory, found.available_bytes())
    except DeviceError as error:
        return Device(name, reason=re.sub(r"^device [\w:-]+: ", "", str(error)))
