"""Optional interfaces of engines: where nodes run, fixed shapes, compiling and quantizing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from edgespec.runtime.engines.base import Cache, Engine, Executable, StageFile
from edgespec.runtime.shapes import Shape, Shapes


@dataclass(frozen=True)
class Assignment:
    """The processors that the nodes of a compiled stage run on.

    Attributes:
        here: operator types of the nodes on the device, one entry for each node.
        elsewhere: nodes that run on the CPU, as `name (operator type)`.
    """

    here: tuple[str, ...]
    elsewhere: tuple[str, ...]

    def elsewhere_in_short(self) -> str:
        """Returns the first nodes that run on the CPU, and how many more there are."""
        more = f" and {len(self.elsewhere) - 3} more" if len(self.elsewhere) > 3 else ""
        return ", ".join(self.elsewhere[:3]) + more


@runtime_checkable
class Assigning(Protocol):
    """An engine that can tell where a stage's nodes run."""

    def assignment(self, stage: StageFile) -> Assignment:
        """Compiles the stage for the first of the engine's shapes, and returns where nodes run.

        Raises:
            DeviceError: if the engine refuses the stage.
        """


@runtime_checkable
class Fixable(Protocol):
    """An engine that needs fixed shapes; they are chosen automatically if the user gave none.

    Attributes:
        open_shapes: whether the shapes still have to be chosen.
    """

    open_shapes: bool

    def fixed(self, shapes: Shapes) -> Engine:
        """Returns this engine with the given shapes.

        Raises:
            InputError: if there are more shapes than the engine allows.
        """

    def takes(self, device: str, compiler: str) -> bool:
        """Returns whether this engine can load stages that a compiler made for a device."""


class Seats(Protocol):
    """The caches of several texts, side by side.

    Attributes:
        capacity: C, in rows of layers that keep them all; the same for all texts.
    """

    capacity: int

    def seat(self, number: int) -> Cache:
        """Returns the cache of one text, from 0 on."""

    def among(self, seats: range) -> Cache:
        """Returns the caches of consecutive texts, for `Executable.run`."""

    def grow(self, capacity: int) -> None:
        """Enlarges the caches to `capacity` rows and keeps their content."""


class Seating(Executable, Protocol):
    """An executable whose calls hold several texts.

    Attributes:
        seats_on_device: whether their caches lie in a device's memory, of which all is taken at
            once, and of which calls can only read the first seats.
    """

    seats_on_device: bool

    def new_seats(self, count: int, capacity: int) -> Seats:
        """Creates empty caches of `count` texts, with `capacity` rows each."""


class Compiler(Engine, Protocol):
    """Compiles stages into files, to be loaded on machines with a certain device.

    Attributes:
        compiler: name and version of the compiler.
    """

    compiler: str

    def precompile(self, stage: StageFile, shape: Shape, output: Path) -> None:
        """Compiles a stage for a shape into a file, and perhaps others beside it.

        Raises:
            DeviceError: if the stage cannot be compiled as a whole.
        """


class Quantizer(Engine, Protocol):
    """An engine on the CPU that records the inputs of its stages, to quantize them."""

    def quantize(self, stage: StageFile, bits: int, output: Path) -> dict[str, float]:
        """Writes a stage with quantized weights and 16-bit activations.

        Args:
            stage: a stage that this engine has compiled and run.
            bits: bits of a weight.
            output: the ONNX file to write; its data goes to `output`.data.

        Returns:
            The relative RMS error of each quantized matrix.

        Raises:
            DeviceError: if the stage cannot be quantized.
        """
