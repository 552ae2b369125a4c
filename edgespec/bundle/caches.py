"""Groups of a stage's layers whose keys and values have one shape, and reach equally far back.

Layers with a window keep little more than the rows that they see. In the graph, the dimension of
their rows is `C_512` for a window of 512 positions, and `C` for layers that keep all rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_ROWS = re.compile(r"C(?:_([1-9]\d{0,9}))?")
_NEW_KV = "new_kv"


@dataclass(frozen=True)
class CacheGroup:
    """Layers of a stage whose keys and values lie together, [layers, 2, KV, rows, hd].

    Attributes:
        layers: numbers of the layers, ascending.
        kv_heads: number of key and value heads of each.
        head_dim: width of a head.
        window: positions that its layers see, if they keep no more than these need; else None.
    """

    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    window: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the stage's inputs that are its cache: keys and values of each layer."""
        return tuple(past_input(layer, part) for layer in self.layers for part in _PARTS)

    @property
    def width(self) -> int:
        """Numbers that a row takes in all layers, keys and values."""
        return 2 * len(self.layers) * self.kv_heads * self.head_dim


_PARTS = ("key", "value")


def past_input(layer: int, part: str) -> str:
    """Returns the name of the stage input with a layer's keys or values; `part` says which."""
    return f"past.{layer}.{part}"


def rows_symbol(window: int | None) -> str:
    """Returns the symbol of the rows of layers that keep a window of positions, or all."""
    return "C" if window is None else f"C_{window}"


def is_rows_symbol(text: str) -> bool:
    """Whether a dimension is one that `rows_symbol` returns."""
    return _ROWS.fullmatch(text) is not None


def window_of_rows(symbol: str) -> int | None:
    """Returns the window that a symbol of rows stands for; None for all rows.

    Raises:
        ValueError: if it is no such symbol.
    """
    found = _ROWS.fullmatch(symbol)
    if found is None:
        raise ValueError(f"unknown dimension {symbol!r} of a cache's rows: use C or C_N")
    return int(found[1]) if found[1] else None


def new_kv_output(group: int) -> str:
    """Returns the name of the stage output with the new rows of a group, by its number."""
    return f"{_NEW_KV}.{group}" if group else _NEW_KV


def is_new_kv(name: str) -> bool:
    """Whether a stage output has new rows of a group."""
    return name.partition(".")[0] == _NEW_KV


def grouped(inputs: Iterable[tuple[str, Sequence[str]]]) -> tuple[CacheGroup, ...]:
    """Finds the groups of a stage, in the order of their first layers.

    Args:
        inputs: names and dimensions of the stage's inputs.

    Raises:
        ValueError: if a dimension of keys is none.
    """
    layers: dict[tuple[int, int, int | None], list[int]] = {}
    for name, shape in inputs:
        first, *rest = name.split(".")
        if first == "past" and rest[1] == _PARTS[0]:
            heads, rows, width = shape
            key = int(heads), int(width), window_of_rows(rows)
            layers.setdefault(key, []).append(int(rest[0]))
    return tuple(
        CacheGroup(tuple(numbers), heads, width, window)
        for (heads, width, window), numbers in layers.items()
    )
