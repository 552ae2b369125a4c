"""Random operations on a cache, and plain arrays that do the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from edgespec.bundle.caches import CacheGroup
from edgespec.bundle.sublayers import Sublayers
from edgespec.runtime.engines import StageFile
from edgespec.runtime.shapes import kept_rows, ring_rows

STAGE = StageFile(
    graph=Path("unused.onnx"), data=Path("unused.data"), key="unused", role="target",
    layout=Sublayers.pairs(2), start=0, stop=5, cache_groups=(CacheGroup((0, 1), 3, 4),),
    kv_dtype="float32", block_size=0, results=(),
)  # fmt: skip
CAPACITY = 6

WINDOW = 50
GROUPS = (CacheGroup((0, 2), 3, 4, WINDOW), CacheGroup((1,), 1, 6))
"""Layers with a window, which keep 320 rows, and one that sees all, with other heads."""

LONG = 300
"""A capacity that grows beyond these rows."""


@st.composite
def operations(draw, capacity=CAPACITY, growth=9):
    """A strategy for writes, moves and growth, all within the current capacity."""
    steps = []
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["write", "move", "grow"]))
        if kind == "grow":
            capacity += draw(st.integers(1, growth))
            steps.append(("grow", capacity, 0))
        elif kind == "write":
            rows = draw(st.lists(st.integers(0, 7), max_size=6))
            if draw(st.booleans()):
                first = draw(st.integers(0, 8 - len(rows)))
                rows = range(first, first + len(rows))
            steps.append(("write", rows, draw(st.integers(0, capacity - len(rows)))))
        else:
            start = draw(st.integers(0, capacity - 1))
            rows = sorted(draw(st.sets(st.integers(start, min(start + 128, capacity) - 1))))
            steps.append(("move", rows, start))
    return steps


def followed(cache, stage, steps, placed, capacity=CAPACITY):
    """Apply the steps to a cache; yields after each what its tensors should hold, by name.

    `placed` converts a call's new rows of a group, an array, to what the cache expects.
    """
    rng = np.random.default_rng(0)
    arrays = [np.zeros(shape(each, capacity), stage.kv_dtype) for each in stage.cache_groups]
    for kind, rows, start in steps:
        if kind == "grow":
            cache.grow(rows)
            capacity = rows
            for number, group in enumerate(stage.cache_groups):
                grown = np.zeros(shape(group, capacity), stage.kv_dtype)
                grown[:, :, :, : arrays[number].shape[3]] = arrays[number]
                arrays[number] = grown
        elif kind == "write":
            new = [
                rng.standard_normal(shape(each, 8)).astype(stage.kv_dtype)
                for each in stage.cache_groups
            ]
            cache.write([placed(each) for each in new], rows, start)
            for group, array, own in zip(stage.cache_groups, arrays, new, strict=True):
                for number, row in enumerate(rows):
                    array[:, :, :, place(group, start + number)] = own[:, :, :, row]
        else:
            cache.move(rows, start)
            for group, array in zip(stage.cache_groups, arrays, strict=True):
                for number, row in enumerate(rows):
                    moved = array[:, :, :, place(group, row)]
                    array[:, :, :, place(group, start + number)] = moved
        assert cache.capacity == capacity
        yield {
            name: tensor
            for group, array in zip(stage.cache_groups, arrays, strict=True)
            for name, tensor in zip(group.names, array.reshape(-1, *array.shape[2:]), strict=True)
        }


def shape(group, rows):
    """The shape of an array with so many rows of a group, or all that it keeps of them."""
    layers = len(group.layers)
    return (layers, 2, group.kv_heads, kept_rows(rows, group.window), group.head_dim)


def place(group, position):
    return position if group.window is None else position % ring_rows(group.window)
