"""The embedded bundle as if it were cut into stages, and devices with memory of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from edgespec import bundle
from edgespec.bundle import TARGET, Stage, Tensor
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.deployment import device_names
from edgespec.runtime.engines import Footprint, engine
from edgespec.runtime.engines.cpu.onnxruntime import OnnxRuntimeCpu
from edgespec.runtime.engines.host import MIB
from edgespec.runtime.shapes import ANY_SHAPES, Shapes

EMBEDDED = bundle.load(BUNDLE)
LAYERS, HEAD = 8, 16  # layers of its target, and the number of the head's sublayer


def cut(*starts):
    """The embedded bundle as if its target had stages that start at these sublayers."""
    [whole] = EMBEDDED.target.stages
    hidden = Tensor("hidden", "float32", ("S", "256"))
    stages = []
    for start, stop in pairwise((0, *starts, HEAD + 1)):
        past = tuple(
            tensor
            for tensor in whole.inputs
            if tensor.name.startswith("past.")
            and start <= 2 * int(tensor.name.split(".")[1]) < stop
        )
        passed = (replace(hidden, name="next_hidden"),)
        outputs = whole.outputs if stop > HEAD else passed
        stages.append(Stage(whole.graph, whole.data, start, stop, (hidden, *past), outputs))
    target = replace(EMBEDDED.target, stages=tuple(stages))
    roles = {**EMBEDDED.manifest.roles, TARGET: target}
    return replace(EMBEDDED, manifest=replace(EMBEDDED.manifest, roles=roles))


class Gpu(OnnxRuntimeCpu):
    """A device with memory of its own, as far as the memory plan is concerned."""

    name = "fake:gpu"
    memory = "gpu"
    library_bytes = 3 * MIB

    def available_bytes(self):
        return 64 * MIB


@dataclass(frozen=True)
class Scale:
    """An engine with round memory needs: the weights and one byte per row."""

    name: str
    memory: str
    library_bytes: int = 7
    hardware: str = "scale"
    version: str = "1"
    shapes: Shapes = ANY_SHAPES
    variant: str | None = None
    keeps_states: bool = False
    several_texts: bool = False
    integer_caches: bool = False

    def available_bytes(self):
        return 1 << 40

    def footprint(self, stage, calls):
        weights = stage.matmul_bytes + stage.embedding_bytes
        return Footprint(weights, 0, 5, calls.logit_rows * stage.vocab, calls.rows, 3, 0)


def with_gpu(monkeypatch, gpu):
    """Make this the machine's only GPU."""
    monkeypatch.setattr(device_names, "best_gpu", lambda: gpu.name)
    monkeypatch.setattr(
        device_names, "engine", lambda name: gpu if name == gpu.name else engine(name)
    )


def without_gpu(monkeypatch):
    """Make the machine have no GPU."""
    monkeypatch.setattr(device_names, "best_gpu", lambda: None)
    device_names._warn_of_no_gpu.cache_clear()
