"""The description of a simulated machine, read from JSON; every number has its source."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path

from edgespec.bundle import TARGET
from edgespec.errors import InputError
from edgespec.runtime.curve import Curve
from edgespec.runtime.simulation.clock import Clock
from edgespec.runtime.simulation.stated import StatedModel, bytes_per_weight
from edgespec.system import records

HOST = "cpu"
"""The device that every machine has. Its memory is the host's."""

_LAPTOPS = Path(__file__).with_name("laptops")
_CAPACITY = 1  # capacity of the curves' points, which hold for all capacities
_MOST_SIZE, _MOST_FIGURE = 10**6, 1e12  # more than any machine has, and safe to compute with


@dataclass(frozen=True)
class Figure:
    """A number and its source.

    Attributes:
        value: the number.
        source: where it is from; for an estimate, what it is estimated from.
    """

    value: float
    source: str


@dataclass(frozen=True)
class Points:
    """Durations of a call of a whole model, linear between the points.

    Attributes:
        ms: milliseconds by number of rows; JSON has the rows as decimal strings.
        source: where the durations are from.
    """

    ms: dict[str, float]
    source: str


@dataclass(frozen=True)
class Link:
    """The connection between a device and the host. Every call transfers its inputs and results.

    Attributes:
        gb_per_s: bandwidth in 10^9 bytes per second.
        us: latency in microseconds per call.
    """

    gb_per_s: Figure
    us: Figure


@dataclass(frozen=True)
class Device:
    """A simulated device.

    A call takes max(weights / bandwidth, rows x weights / compute) + overhead, or the time on the
    curve of its role.

    Attributes:
        chip: name of the chip.
        overhead_us: microseconds of a call besides its products; curves include it.
        gib: memory for models in GiB; None if the device uses the host's.
        gb_per_s: 10^9 bytes of weights read per second.
        tmac_per_s: 10^12 multiplications by quantized weights per second.
        link: connection to the host; None if the host's memory is its own.
        curves: durations by role, in place of the two rates.
    """

    chip: str
    overhead_us: Figure
    gib: Figure | None = None
    gb_per_s: Figure | None = None
    tmac_per_s: Figure | None = None
    link: Link | None = None
    curves: dict[str, Points] | None = None


@dataclass(frozen=True)
class Shared:
    """Devices that share the bandwidth of one memory.

    Attributes:
        devices: their names.
        slowdown: factor by which each is slower while another is busy, 1 or more.
    """

    devices: tuple[str, ...]
    slowdown: Figure


@dataclass(frozen=True)
class Machine:
    """A simulated machine and the models that it runs.

    Attributes:
        description: one line about the machine.
        models: the simulated models, by role.
        devices: the devices, by name; `cpu` is among them.
        shared: groups of devices that slow each other down.
    """

    description: str
    models: dict[str, StatedModel]
    devices: dict[str, Device]
    shared: tuple[Shared, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Hash of the whole description, which names measurements."""
        text = json.dumps(records.encode(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def clock(self) -> Clock:
        """The clock for all users of this machine in this process."""
        return Clock([(each.devices, each.slowdown.value) for each in self.shared])

    def memory_bytes(self, device: str) -> int:
        """Returns the bytes of memory of a device that has its own, or of the host."""
        size = self.devices[device].gib
        assert size is not None
        return int(size.value * (1 << 30))

    def seconds(self, device: str, role: str, sublayers: range, rows: int) -> float:
        """Returns the seconds of a call over some sublayers of a model, without transfers."""
        at, model = self.devices[device], self.models[role]
        macs, overhead = model.macs(sublayers.start, sublayers.stop), at.overhead_us.value / 1e6
        points = (at.curves or {}).get(role)
        if points is not None:
            whole = _curve(tuple(sorted(points.ms.items()))).seconds(rows, _CAPACITY)
            return (whole - overhead) * macs / model.macs() + overhead
        assert at.gb_per_s is not None
        assert at.tmac_per_s is not None
        reading = macs * bytes_per_weight() / (at.gb_per_s.value * 1e9)
        return max(reading, rows * macs / (at.tmac_per_s.value * 1e12)) + overhead

    def transfer_seconds(self, device: str, nbytes: int) -> float:
        """Returns the seconds that a call takes to transfer bytes between host and device."""
        link = self.devices[device].link
        return 0.0 if link is None else link.us.value / 1e6 + nbytes / (link.gb_per_s.value * 1e9)


def laptops() -> tuple[str, ...]:
    """Returns the names of the machines that come with the package."""
    return tuple(sorted(file.stem for file in _LAPTOPS.glob("*.json")))


def load(reference: str) -> Machine:
    """Loads a machine by the name of one that comes with the package, or from a file.

    Files with equal text give the same machine, with one clock.

    Raises:
        InputError: if there is no such machine, or its file is not valid.
    """
    file = _LAPTOPS / f"{reference}.json" if reference in laptops() else Path(reference)
    try:
        return _parsed(file.read_text(encoding="utf-8-sig"))  # with or without a BOM
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(
            f"there is no machine {reference!r} to simulate: give a JSON file, or one of "
            f"{', '.join(laptops())}"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: {error}: see docs/simulator.md") from error


@cache
def _parsed(text: str) -> Machine:
    machine = records.decode(Machine, json.loads(text), "machine")
    for fault in chain(_faults(machine), _faulty_numbers(machine)):
        raise ValueError(fault)
    return machine


def _faults(machine: Machine) -> Iterator[str]:
    """Yields what does not fit together."""
    if TARGET not in machine.models:
        yield f"machine.models: no {TARGET!r}"
    host = machine.devices.get(HOST)
    if host is None or host.gib is None:
        yield f"machine.devices.{HOST}: missing, or without gib"
    for name, device in machine.devices.items():
        missing = machine.models.keys() - (device.curves or {}).keys()
        if missing and (device.gb_per_s is None or device.tmac_per_s is None):
            yield (
                f"machine.devices.{name}: give gb_per_s and tmac_per_s, or a curve of "
                f"{', '.join(sorted(missing))}"
            )
    for group in machine.shared:
        for name in group.devices:
            if name not in machine.devices:
                yield f"machine.shared: {name!r} is not one of the devices"
        if not group.slowdown.value >= 1:
            yield f"machine.shared: slowdown is {group.slowdown.value}: give 1 or more"


def _faulty_numbers(machine: Machine) -> Iterator[str]:
    for role, model in machine.models.items():
        for field, value in records.encode(model).items():
            counts = isinstance(value, int) and not isinstance(value, bool)
            if counts and not 1 <= value <= _MOST_SIZE:
                yield f"machine.models.{role}.{field} is {value}: give 1 to {_MOST_SIZE}"
    for name, device in machine.devices.items():
        link = device.link
        figures = [device.overhead_us, device.gib, device.gb_per_s, device.tmac_per_s]
        figures += [link.gb_per_s, link.us] if link else []
        numbers = [figure.value for figure in figures if figure is not None]
        for points in (device.curves or {}).values():
            _curve(tuple(sorted(points.ms.items())))
            numbers += [ms - device.overhead_us.value / 1e3 for ms in points.ms.values()]
        for number in numbers:
            if not 0 < number <= _MOST_FIGURE:
                yield (
                    f"machine.devices.{name}: {number} among its figures: give more than 0 and "
                    f"{_MOST_FIGURE:g} at most"
                )


@cache
def _curve(points: tuple[tuple[str, float], ...]) -> Curve:
    return Curve({_CAPACITY: {int(rows): ms / 1e3 for rows, ms in points}})
