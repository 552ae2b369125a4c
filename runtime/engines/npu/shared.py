"""Parts that all NPU engines share: fixed shapes, and memory estimates."""

from __future__ import annotations

from copy import copy
from typing import Self

from edgespec.errors import InputError
from edgespec.runtime.engines.base import CallSizes, Footprint, StageSizes
from edgespec.runtime.shapes import NPU_SHAPES, Shapes

_FLOAT_BYTES = {"fp16": 2, "fp32": 4}


_MOST_SHAPES = 2


class FewShapes:
    """An engine with fixed shapes, each of which needs its own copy of the weights.

    Args:
        base: the engine's name without shapes.
        shapes: shapes of calls; None: they are chosen later.
        ending: text at the end of the name.

    Attributes:
        shapes: shapes of calls.
        open_shapes: see `Fixable`.
        name: the engine's name, with the shapes if they were given.

    Raises:
        InputError: if there are too many shapes.
    """

    def __init__(self, base: str, shapes: Shapes | None, ending: str = "") -> None:
        self._base, self._ending = base, ending
        self._fix(shapes)

    def _fix(self, shapes: Shapes | None) -> None:
        self.shapes = NPU_SHAPES if shapes is None else shapes
        self.open_shapes = shapes is None
        self.name = self._base + ("" if shapes is None else f"#{shapes}") + self._ending
        if len(self.shapes.all) > _MOST_SHAPES:
            raise InputError(
                f"device {self.name}: {len(self.shapes.all)} pairs of rows and capacity, each "
                f"with its own copy of the weights: give at most {_MOST_SHAPES}, as "
                f"{self._base}#8/32x{self.shapes.capacities[-1]}"
            )

    def fixed(self, shapes: Shapes) -> Self:
        """See `Fixable`."""
        made = copy(self)
        made._fix(shapes)
        return made

    def footprint(self, stage: StageSizes, calls: CallSizes) -> Footprint:
        """See `Engine`."""
        return npu_footprint(stage, self.shapes)


def npu_footprint(stage: StageSizes, shapes: Shapes) -> Footprint:
    """Estimates the memory of a stage: each shape has its own weights in half precision.

    This is calculated, not measured; inputs and results of a call are included.
    """
    weights = 2 * weight_count(stage, stage.matmul_bytes + stage.embedding_bytes)
    buffers = rows = 0
    for shape in shapes.all:
        rows += shape.rows
        buffers += stage.cache_bytes(shape.capacity, 4)
        buffers += 4 * stage.heads * shape.rows * (shape.capacity + shape.rows)
    return Footprint(
        weights=weights,
        repacked=weights * (len(shapes.all) - 1),
        mapped=0,
        logits=rows * (4 * stage.vocab + stage.result_bytes + stage.passed_bytes),
        workspace=buffers,
        shared=0,
        loading=2 * weights,  # float32 weights while compiling
    )


def weight_count(stage: StageSizes, nbytes: int) -> int:
    """Returns how many weights this many bytes of a stage hold."""
    if not stage.block_size:
        return nbytes // _FLOAT_BYTES[stage.precision]
    return stage.blocks(nbytes) * stage.block_size
