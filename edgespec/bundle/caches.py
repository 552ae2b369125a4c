"""Groups of a stage's layers whose keys and values have one shape, and reach equally far back.

Layers with a window keep little more than the rows that they see. In the graph, the dimension of
their rows is `C_512` for a window of 512 positions, and `C` for layers that keep all rows. Keys and
values in 8 bits have a scale for each row and head; these are groups of their own, of width 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

_ROWS = re.compile(r"C(?:_([1-9]\d{0,9}))?")
_NEW_KV = "new_kv"

TEXT_ROWS, TEXT_PLACES = "text_rows", "text_places"
"""Inputs of a stage for several texts: the row in each text's places, and each row's place."""

KEY_VALUE = ("key", "value")
SCALES = ("key_scale", "value_scale")
"""Parts of what a layer has in the cache."""


@dataclass(frozen=True)
class CacheGroup:
    """Layers of a stage whose keys and values lie together, [layers, 2, KV, rows, hd].

    Attributes:
        layers: numbers of the layers, ascending.
        kv_heads: number of key and value heads of each.
        head_dim: width of a head; 1 if these are scales.
        window: positions that its layers see, if they keep no more than these need; else None.
        dtype: numpy's name of the data type: float32, float16 or int8.
        scales: whether they are the scales of keys and values, and not these.
    """

    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    window: int | None = None
    dtype: str = "float32"
    scales: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the stage's inputs that are its cache: keys and values of each layer."""
        parts = SCALES if self.scales else KEY_VALUE
        return tuple(past_input(layer, part) for layer in self.layers for part in parts)

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes in all layers."""
        return self.width * np.dtype(self.dtype).itemsize

    @property
    def width(self) -> int:
        """Numbers that a row takes in all layers, keys and values."""
        return 2 * len(self.layers) * self.kv_heads * self.head_dim


def past_input(layer: int, part: str) -> str:
    """Returns the name of a stage input with one of `KEY_VALUE` or `SCALES` of a layer."""
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


def grouped(inputs: Iterable[tuple[str, str, Sequence[str]]]) -> tuple[CacheGroup, ...]:
    """Finds the groups of a stage, in the order of their first layers.

    Args:
        inputs: names, data types and dimensions of the stage's inputs.

    Raises:
        ValueError: if a dimension of keys is none.
    """
    groups: dict[CacheGroup, list[int]] = {}
    for name, dtype, shape in inputs:
        first, *rest = name.split(".")
        if first == "past" and rest[1] in (KEY_VALUE[0], SCALES[0]):
            heads, rows, width = shape[-3:]
            scales, window = rest[1] == SCALES[0], window_of_rows(rows)
            alike = CacheGroup((), int(heads), int(width), window, dtype, scales)
            groups.setdefault(alike, []).append(int(rest[0]))
    return tuple(replace(group, layers=tuple(layers)) for group, layers in groups.items())
