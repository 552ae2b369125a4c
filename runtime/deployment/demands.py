"""Memory demands of each device, computed before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.runtime.shapes import Shape

MIB = 1 << 20

HOST = "cpu"
"""The name of the host's memory, which the process itself uses."""

_TERMS = ("baseline", "weights", "repacked", "kv", "logits", "workspace")


@dataclass(frozen=True)
class Demand:
    """The memory that one device needs, in bytes.

    Attributes:
        device: cpu, or the name of a device with its own memory.
        baseline: memory of the interpreter, the tokenizer and the engines' libraries.
        weights: memory of the weights as the bundle stores them, or widened to float32.
        repacked: memory of the weights in an engine's own layout.
        kv: memory of the KV caches at their largest.
        logits: memory of the results of calls.
        workspace: memory of the compiled graphs and of the largest call, or the peak while
            loading if that is higher.
        limit: memory that may be used.
        mapped: file-backed pages, which the system can reclaim; not part of the total.
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
        """The sum of all `terms`."""
        return sum(self.terms.values())

    @property
    def terms(self) -> dict[str, int]:
        """The parts of the total by name: all fields but the device, the limit and `mapped`."""
        return {term: getattr(self, term) for term in _TERMS}


@dataclass(frozen=True)
class FixedShape:
    """A shape that a role's stages on NPUs are compiled for.

    Attributes:
        role: name of the role whose calls have this shape.
        device: names of the engines, joined by `+`.
        shape: rows S and capacity C.
        bytes: memory that it takes: weights, results and workspace.
        ready: whether the bundle holds stages that are already compiled for it.
    """

    role: str
    device: str
    shape: Shape
    bytes: int
    ready: bool
