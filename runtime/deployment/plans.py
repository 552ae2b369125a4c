"""What memory a plan says that a bundle takes, and how it is then run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgespec.errors import MemoryLimitError
from edgespec.runtime.shapes import Shape

MIB = 1 << 20

HOST = "cpu"

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


@dataclass(frozen=True)
class Plan:
    """What fits, and what it takes.

    Attributes:
        fits: whether `devices` stay within their limits; if not, this is the least that can be.
        context: tokens of prompt and output.
        draft: the draft source.
        max_tree: nodes of a draft tree at most.
        prefill_chunk: rows of a call that reads a prompt.
        engines: of each role that is loaded, the name of each stage's engine.
        devices: what each takes, with trees as large as wished or as `max_tree` allows.
        shapes: what NPUs are compiled for, smallest first; `engines` say so, too.
    """

    fits: bool
    context: int
    draft: str
    max_tree: int
    prefill_chunk: int
    engines: Mapping[str, tuple[str, ...]]
    devices: tuple[Demand, ...]
    shapes: tuple[FixedShape, ...] = ()

    def require_fit(self, name: str) -> None:
        """Refuse what does not fit.

        Raises:
            MemoryLimitError: with the numbers of the first device that is too small for `name`.
        """
        for demand in self.devices:
            if demand.total > demand.limit:
                smaller = ", --draft lookup" if self.draft == "model" else ""
                terms = ", ".join(f"{n} {size / MIB:.0f}" for n, size in demand.terms.items())
                raise MemoryLimitError(
                    f"{name} needs {demand.total / MIB:.0f} MiB on {demand.device} and "
                    f"{demand.limit / MIB:.0f} may be used ({terms}; context {self.context}, "
                    f"draft {self.draft}): raise --memory, or ask for a shorter --context"
                    f"{smaller} or a bundle of lower precision"
                )
