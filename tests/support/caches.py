"""Random operations on a cache, and a plain array that does the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from edgespec.bundle.sublayers import Sublayers
from edgespec.runtime.engines import StageFile

STAGE = StageFile(
    graph=Path("unused.onnx"), data=Path("unused.data"), key="unused", role="target",
    layout=Sublayers.pairs(2), start=0, stop=5, cached=(0, 1),
    cache_shape=(2, 2, 3, 4), kv_dtype="float32", block_size=0, results=(),
)  # fmt: skip
CAPACITY = 6


@st.composite
def operations(draw):
    """A strategy for writes, moves and growth, all within the current capacity."""
    capacity, steps = CAPACITY, []
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["write", "move", "grow"]))
        if kind == "grow":
            capacity += draw(st.integers(1, 9))
            steps.append(("grow", capacity, 0))
        elif kind == "write":
            rows = draw(st.lists(st.integers(0, 7), max_size=6))
            if draw(st.booleans()):
                first = draw(st.integers(0, 8 - len(rows)))
                rows = range(first, first + len(rows))
            steps.append(("write", rows, draw(st.integers(0, capacity - len(rows)))))
        else:
            start = draw(st.integers(0, capacity - 1))
            rows = sorted(draw(st.sets(st.integers(start, capacity - 1))))
            steps.append(("move", rows, start))
    return steps


def followed(cache, stage, steps, placed):
    """Apply the steps to a cache; yields after each what its tensors should hold, by name.

    `placed` converts a call's `new_kv`, an array, to what the cache expects.
    """
    shape, rng = stage.cache_shape, np.random.default_rng(0)
    expected = [np.zeros(shape, stage.kv_dtype) for _ in range(CAPACITY)]
    for kind, rows, start in steps:
        if kind == "grow":
            cache.grow(rows)
            expected += [np.zeros(shape, stage.kv_dtype)] * (rows - len(expected))
        elif kind == "write":
            new_kv = rng.standard_normal((*shape[:3], 8, shape[3])).astype(stage.kv_dtype)
            cache.write(placed(new_kv), rows, start)
            expected[start : start + len(rows)] = [new_kv[:, :, :, row] for row in rows]
        else:
            cache.move(rows, start)
            expected[start : start + len(rows)] = [expected[row] for row in rows]
        assert cache.capacity == len(expected)
        array = np.stack(expected, axis=3)
        yield {
            f"past.{layer}.{part}": array[layer, index]
            for layer in range(shape[0])
            for index, part in enumerate(("key", "value"))
        }
