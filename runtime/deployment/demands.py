"""What each device's memory has to hold, as it is known before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.runtime.shapes import Shape

MIB = 1 << 20

HOST = "cpu"
"""The memory that the process itself lives in."""

_TERMS = ("baseline", "weights", "repacked", "kv", "logits", "workspace")


@dataclass(frozen=True)
class Demand:
    """What one device's memory has to hold, in bytes.

    Attributes:
        device: cpu, or a device with memory of its own.
        baseline: the interpreter, the tokenizer and the engines' libraries.
        weights: weights as the bundle has them, or widened.
        repacked: weights in an engine's own layout.
        kv: caches at their largest.
        logits: results of the calls.
        workspace: compiled graphs and the largest call; more where loading takes more.
        limit: what may be used.
        mapped: file-backed pages, which the system can take back; not part of the total.
    """

    device: str
    baseline: int
    weights: int
    repacked: int
    kv: int
    logits: int
    workspace: int
    limit: int
    mapped: int

    @property
    def total(self) -> int:
        """All `terms`."""
        return sum(self.terms.values())

    @property
    def terms(self) -> dict[str, int]:
        """What counts, by its name: everything but the limit and `mapped`."""
        return {term: getattr(self, term) for term in _TERMS}


@dataclass(frozen=True)
class FixedShape:
    """Rows and capacity that a role's stages on NPUs are compiled for, together.

    Attributes:
        role: whose calls have this shape.
        device: the engines, joined by `+`.
        shape: S and C.
        bytes: what it takes, in weights, results and workspace.
        ready: whether the bundle has it compiled for the device.
    """

    role: str
    device: str
    shape: Shape
    bytes: int
    ready: bool
