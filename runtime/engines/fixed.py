"""Stages whose shapes are fixed before compilation, as NPUs need them; CPU engines can too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from edgespec.bundle.caches import CacheGroup
from edgespec.bundle.sublayers import bias_input, mask_input, window_mask
from edgespec.runtime.arrays import Array
from edgespec.runtime.engines.base import Cache, Executable, StageFile, StageOutputs, row_count
from edgespec.runtime.engines.host import HostCache
from edgespec.runtime.shapes import COLUMNS, FIXED_WINDOW, Shape, Shapes, kept_rows


class FixedExecutable:
    """A stage compiled for each of a few fixed shapes, with its cache on the host.

    Args:
        stage: the stage.
        shapes: the fixed shapes.
        compile_shape: compiles the stage for one of them.

    Raises:
        DeviceError: if the stage cannot be compiled.
    """

    def __init__(
        self, stage: StageFile, shapes: Shapes, compile_shape: Callable[[Shape], Executable]
    ) -> None:
        self._stage = stage
        self._compiled = {shape: compile_shape(shape) for shape in shapes.all}
        self._feeds: dict[Shape, tuple[Mapping[str, Array], dict[str, Array]]] = {}

    def new_cache(self, capacity: int, most: int) -> HostCache:
        """See `Executable`."""
        return HostCache(self._stage, capacity, most)

    def run(self, feeds: Mapping[str, Array], cache: Cache) -> StageOutputs:
        """See `Executable`."""
        shape = Shape(row_count(feeds), cache.capacity)
        known = self._feeds.get(shape)
        if known is None or known[0] is not feeds:
            # The same feeds must give the same mapping, so that it is bound only once.
            rest = {name: array for name, array in feeds.items() if not is_lengths(name)}
            known = self._feeds[shape] = (feeds, rest)
        return self._compiled[shape].run(known[1], cache)


def is_lengths(name: str) -> bool:
    """Whether an input has the numbers of old and new rows, constants for a fixed shape."""
    return name.partition(".")[0] == "lengths"


def kept_by_input(groups: Iterable[CacheGroup], capacity: int) -> dict[str, int]:
    """Returns the rows of the cache that a stage's inputs are about, where they are not all.

    Args:
        groups: groups of the stage's layers.
        capacity: rows of those that keep all.
    """
    found = dict[str, int]()
    for group in groups:
        if group.window is not None:
            mask = window_mask(group.window)
            names = (*group.names, bias_input(mask), mask_input("lengths", mask))
            found |= dict.fromkeys(names, kept_rows(capacity, group.window))
    return found


def input_shape(name: str, width: list[int], shape: Shape, ordered: bool) -> list[int]:
    """Returns the dimensions of a stage's input for a fixed shape.

    Args:
        name: name of the input.
        width: its dimensions, -1 for those that depend on `shape`.
        shape: rows S, and rows of the cache that the input is about.
        ordered: whether the stage has ordered attention.
    """
    rows, capacity = shape
    if name.startswith("attention_bias"):  # one for each mask
        return [rows, COLUMNS + capacity if ordered else capacity + rows]
    if name.startswith("window_rows"):
        return [FIXED_WINDOW]
    known = {
        "recent_rows": [rows, COLUMNS],
        "recent_columns": [rows, FIXED_WINDOW + rows],
    }
    size = capacity if name.startswith("past.") else rows
    return known.get(name) or [size if n < 0 else n for n in width]


def is_ordered(names: Iterable[str]) -> bool:
    """Returns whether a stage with these inputs has ordered attention."""
    return "recent_rows" in names


def lengths(shape: Shape, ordered: bool) -> list[int]:
    """Returns the numbers of old and new rows for a fixed shape."""
    return [COLUMNS, shape.capacity] if ordered else [shape.capacity, shape.rows]
