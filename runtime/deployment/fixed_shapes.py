"""Chooses the shapes that an NPU is compiled for if the user gave none.

Each pair of rows and capacity has its own copy of the weights, so there are at most two. The first
serves both plain decoding and small trees, so that both give the same text. The second, with more
rows, reads prompts and verifies larger trees; it is left out if memory is short.
"""

from __future__ import annotations

from collections.abc import Collection

from edgespec.bundle import Bundle
from edgespec.runtime.engines import Engine, Engines, Fixable
from edgespec.runtime.execution.stage_files import ready_shapes
from edgespec.runtime.shapes import NPU_SHAPES, Shape, Shapes

_SMALL, _LARGE = NPU_SHAPES.rows

LONGEST_UNASKED = 2048
"""Context in tokens if the user gave none. Every call computes over all of it, so it is short."""


def chosen_shapes(rows: int, capacity: int, ready: Collection[Shape] = ()) -> Shapes:
    """Returns one or two pairs of rows and capacity.

    Args:
        rows: number of rows of the longest call.
        capacity: number of cache rows that texts need.
        ready: shapes that are already compiled. The smallest sufficient capacity among them is
            used, with its rows. If there is none, the needed capacity is rounded up to a multiple
            of the larger number of rows.
    """
    enough = min((each.capacity for each in ready if each.capacity >= capacity), default=None)
    if enough is None:
        enough, have = -(-capacity // _LARGE) * _LARGE, [_SMALL, _LARGE]
    else:
        have = sorted(each.rows for each in ready if each.capacity == enough)
    wanted = {have[0], have[-1]} if rows > have[0] else {have[0]}
    return Shapes(tuple(sorted(wanted)), (enough,))


def ahead_of_time(context: int) -> Shapes:
    """Returns the shapes to compile ahead of time, for a model with this context in tokens."""
    return chosen_shapes(_LARGE, min(context, LONGEST_UNASKED))


def fixed(engines: Engines, shapes: Shapes) -> Engines:
    """Returns a role's engines; those without shapes get the given ones."""
    return tuple(
        each.fixed(shapes) if isinstance(each, Fixable) and each.open_shapes else each
        for each in engines
    )


def is_open(engine: Engine) -> bool:
    """Returns whether an engine needs shapes that were not chosen yet."""
    return isinstance(engine, Fixable) and engine.open_shapes


def longest_text(engine: Engine, ready: Collection[Shape], asked: bool) -> int | None:
    """Returns the largest number of rows that an engine's caches can have; None: no limit.

    Args:
        engine: the engine of a stage.
        ready: shapes that the stage's role is already compiled for.
        asked: whether the user gave a context; shapes are then chosen for it.
    """
    if is_open(engine):
        return None if asked else max((each.capacity for each in ready), default=LONGEST_UNASKED)
    return engine.shapes.capacities[-1] if engine.shapes.capacities else None


def all_ready(bundle: Bundle, role: str, engines: Engines) -> frozenset[Shape]:
    """Returns the shapes that all of a role's NPU stages are already compiled for."""
    found = [
        ready_shapes(bundle, role, number, engine)
        for number, engine in enumerate(engines)
        if isinstance(engine, Fixable)
    ]
    return frozenset.intersection(*found) if found else frozenset()
