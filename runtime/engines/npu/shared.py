"""What the engines of NPUs share: their few fixed shapes, and what a stage takes there."""

from __future__ import annotations

from copy import copy
from typing import Self

from edgespec.errors import InputError
from edgespec.runtime.engines.base import CallSizes, Footprint, StageSizes
from edgespec.runtime.shapes import NPU_SHAPES, Shapes

_FLOAT_BYTES = {"fp16": 2, "fp32": 4}


_MOST_SHAPES = 2


class FewShapes:
    """An engine with fixed shapes, each of which takes weights of its own.

    Args:
        base: its name without shapes.
        shapes: of calls; None: they are still to be chosen.
        ending: of its name.

    Attributes:
        shapes: of calls.
        open_shapes: see `Fixable`.
        name: with the shapes that were given.

    Raises:
        InputError: if there are too many.
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
                f"compiled with weights of its own: give {_MOST_SHAPES} at most, as "
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
    """What contexts of fixed shapes take: each has half-precision weights of its own.

    Arithmetic: inputs and results of a call are counted, too.
    """
    weights = 2 * weight_count(stage, stage.matmul_bytes + stage.embedding_bytes)
    buffers = rows = 0
    for shape in shapes.all:
        rows += shape.rows
        buffers += 2 * 4 * stage.layers * stage.kv_width * shape.capacity
        buffers += 4 * stage.heads * shape.rows * (shape.capacity + shape.rows)
    return Footprint(
        weights=weights,
        repacked=weights * (len(shapes.all) - 1),
        mapped=0,
        logits=rows * (4 * stage.vocab + stage.result_bytes + stage.passed_bytes),
        workspace=buffers,
        shared=0,
        loading=2 * weights,  # as float32, before they are compiled
    )


def weight_count(stage: StageSizes, nbytes: int) -> int:
    """How many weights so many bytes of a stage are."""
    if not stage.block_size:
        return nbytes // _FLOAT_BYTES[stage.precision]
    return stage.blocks(nbytes) * stage.block_size
