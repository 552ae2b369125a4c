"""What the engines of NPUs share: what a stage takes there."""

from __future__ import annotations

from edgespec.runtime.buckets import Shapes
from edgespec.runtime.engines.base import Footprint, StageSizes

_FLOAT_BYTES = {"fp16": 2, "fp32": 4}


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
