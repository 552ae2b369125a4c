"""Which shapes an NPU is compiled for, where the user gave none: few, by the texts to come.

Each pair of rows and capacity has weights of its own, so there are two at most: one for the rows of
small trees and of plain decoding, so that both give the same text, and a larger one that reads
prompts and verifies larger trees, which gives way where memory is short.
"""

from __future__ import annotations

from collections.abc import Collection

from edgespec.bundle import Bundle
from edgespec.runtime.engines import Engine, Engines, Fixable
from edgespec.runtime.execution.stage_files import ready_shapes
from edgespec.runtime.shapes import NPU_SHAPES, Shape, Shapes

_SMALL, _LARGE = NPU_SHAPES.rows

LONGEST_UNASKED = 2048
"""Tokens of a context that nobody asked for: every call is given, and computes, all of it."""


def chosen_shapes(rows: int, capacity: int, ready: Collection[Shape] = ()) -> Shapes:
    """Shapes for some calls, one pair or two.

    Args:
        rows: of the longest call.
        capacity: cache rows that texts need.
        ready: what needs not be compiled any more. The least capacity of them that is enough is
            taken with the rows that it has; without one, the needed capacity is filled up to a
            multiple of the most rows.
    """
    enough = min((each.capacity for each in ready if each.capacity >= capacity), default=None)
    if enough is None:
        enough, have = -(-capacity // _LARGE) * _LARGE, [_SMALL, _LARGE]
    else:
        have = sorted(each.rows for each in ready if each.capacity == enough)
    wanted = {have[0], have[-1]} if rows > have[0] else {have[0]}
    return Shapes(tuple(sorted(wanted)), (enough,))


def ahead_of_time(context: int) -> Shapes:
    """What to compile for a model made for so many tokens, for machines that are not here."""
    return chosen_shapes(_LARGE, min(context, LONGEST_UNASKED))


def fixed(engines: Engines, shapes: Shapes) -> Engines:
    """A role's engines with shapes for those that have none yet."""
    return tuple(
        each.fixed(shapes) if isinstance(each, Fixable) and each.open_shapes else each
        for each in engines
    )


def is_open(engine: Engine) -> bool:
    """Whether shapes are still to be chosen for an engine."""
    return isinstance(engine, Fixable) and engine.open_shapes


def longest_text(engine: Engine, ready: Collection[Shape], asked: bool) -> int | None:
    """Rows that an engine's caches have room for; None: any number.

    Args:
        engine: of a stage.
        ready: what is compiled of its role.
        asked: whether the user says how long texts are, by which shapes are then chosen.
    """
    if is_open(engine):
        return None if asked else max((each.capacity for each in ready), default=LONGEST_UNASKED)
    return engine.shapes.capacities[-1] if engine.shapes.capacities else None


def all_ready(bundle: Bundle, role: str, engines: Engines) -> frozenset[Shape]:
    """The shapes that none of a role's NPUs has to compile any more."""
    found = [
        ready_shapes(bundle, role, number, engine)
        for number, engine in enumerate(engines)
        if isinstance(engine, Fixable)
    ]
    return frozenset.intersection(*found) if found else frozenset()
