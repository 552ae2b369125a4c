"""What some engines offer beside the contract: where nodes run, and making stages for later."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from edgespec.runtime.engines.base import Engine, StageFile
from edgespec.runtime.shapes import Shape, Shapes


@dataclass(frozen=True)
class Assignment:
    """Where the nodes of a compiled stage run.

    Attributes:
        here: kinds of the nodes on the device, each as often as there are.
        elsewhere: nodes that are left to the CPU, as `name (kind)`.
    """

    here: tuple[str, ...]
    elsewhere: tuple[str, ...]

    def elsewhere_in_short(self) -> str:
        """The first of them, and how many more there are."""
        more = f" and {len(self.elsewhere) - 3} more" if len(self.elsewhere) > 3 else ""
        return ", ".join(self.elsewhere[:3]) + more


@runtime_checkable
class Assigning(Protocol):
    """An engine that tells where a stage's nodes would run."""

    def assignment(self, stage: StageFile) -> Assignment:
        """Which of them run where, in the first of the shapes; compiles the stage.

        Raises:
            DeviceError: if the engine refuses it.
        """


@runtime_checkable
class Fixable(Protocol):
    """An engine whose shapes must be fixed, and are chosen for it where the user gave none.

    Attributes:
        open_shapes: whether nobody has given or chosen them yet.
    """

    open_shapes: bool

    def fixed(self, shapes: Shapes) -> Engine:
        """The same for these shapes.

        Raises:
            InputError: if they are more than it may have.
        """

    def takes(self, device: str, compiler: str) -> bool:
        """Whether what a compiler made for a device runs here, without being compiled anew."""


class Compiler(Engine, Protocol):
    """Compiles stages into files, for later loads on machines of one kind.

    Attributes:
        compiler: its name and version.
    """

    compiler: str

    def precompile(self, stage: StageFile, shape: Shape, output: Path) -> None:
        """Compile a stage for a shape into a file, and perhaps others beside it.

        Raises:
            DeviceError: if it cannot be compiled as a whole.
        """


class Quantizer(Engine, Protocol):
    """An engine on the CPU that notes what its stages are given."""

    def quantize(self, stage: StageFile, bits: int, output: Path) -> dict[str, float]:
        """Write a stage with weights of so many bits and 16-bit activations.

        Its data is beside it, in `output`.data.

        Returns:
            The relative RMS error of each quantized matrix.

        Raises:
            DeviceError: if it cannot be quantized.
        """
