"""Passes over texts side by side, and what is kept of the texts between passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Pair = tuple[Tensor, Tensor]


@dataclass
class TextCache:
    """What layers keep of texts side by side.

    Attributes:
        places: most rows of a text.
        half: what keys and values are kept in.
        pools: by pool; of attention keys and values of all places, [B, kv_heads, places, head_dim]
            each; of recurrent layers what convolutions read of the last rows, [B, size - 1,
            channels], and states, [B, value heads, key size, value size], float32.
    """

    places: int
    half: torch.dtype
    pools: dict[str, Pair] = field(default_factory=dict)

    def put(self, pool: str, new: Pair, positions: Tensor) -> None:
        """Keeps keys and values [B, kv_heads, L, head_dim] of places [B, L]."""
        if pool not in self.pools:
            self.pools[pool] = self._empty(new[0]), self._empty(new[1])
        text = torch.arange(len(positions), device=positions.device)[:, None]
        for held, each in zip(self.pools[pool], new, strict=True):
            held[text, :, positions] = each.transpose(1, 2).to(self.half)

    def _empty(self, new: Tensor) -> Tensor:
        count, heads, _, size = new.shape
        return new.new_zeros(count, heads, self.places, size, dtype=self.half)

    def of(self, texts: Tensor) -> TextCache:
        """Returns what is kept of some texts."""
        chosen = {pool: (one[texts], other[texts]) for pool, (one, other) in self.pools.items()}
        return TextCache(self.places, self.half, chosen)


@dataclass
class TextPass:
    """Rows of texts side by side.

    Attributes:
        positions: [B, L] int64, the rows' places in their texts.
        cache: what is known of the texts before, and of these rows later; None: the rows are whole
            texts.
        lengths: [B] int64, how many of the rows are the text's, behind which others fill up; None:
            all, or no text goes on.
        kept: keys and values of the pass by pool, for layers that read another layer's.
        masks: [B, 1, L, places] which places rows see, by window, and whether that is a chunk.
    """

    positions: Tensor
    cache: TextCache | None = None
    lengths: Tensor | None = None
    kept: dict[str, Pair] = field(default_factory=dict)
    masks: dict[tuple[int, bool], Tensor] = field(default_factory=dict)

    def known(self, pool: str, new: Pair | None) -> Pair:
        """Returns the keys and values that rows see, and keeps new ones [B, kv_heads, L, dim]."""
        if self.cache is not None:
            if new is not None:
                self.cache.put(pool, new, self.positions)
            return self.cache.pools[pool]
        if new is not None:
            self.kept[pool] = new
        return self.kept[pool]

    def begun(self, pool: str, recent: tuple[int, ...], state: tuple[int, ...]) -> Pair:
        """Returns what a recurrent layer keeps of texts, zeros at their beginning.

        Args:
            pool: its pool.
            recent: shape of a text's recent rows.
            state: shape of a text's state.
        """
        if self.cache is not None and pool in self.cache.pools:
            return self.cache.pools[pool]
        count = len(self.positions)
        device = self.positions.device
        return torch.zeros(count, *recent, device=device), torch.zeros(count, *state, device=device)

    def keep(self, pool: str, pair: Pair) -> None:
        """Keeps what a recurrent layer knows behind the rows."""
        if self.cache is not None:
            self.cache.pools[pool] = pair

    def real(self, x: Tensor) -> Tensor:
        """Returns numbers of rows, [B, L, n], with 0 for rows that fill up."""
        if self.lengths is None:
            return x
        numbers = torch.arange(x.shape[1], device=x.device)
        return x * (numbers < self.lengths[:, None])[..., None]

    def mask(self, window: int, chunked: bool) -> Tensor:
        """Returns which places rows see; of a layer without a window, that is 0."""
        key = window, chunked
        if key not in self.masks:
            count = self.positions.shape[1] if self.cache is None else self.cache.places
            places = torch.arange(count, device=self.positions.device)
            own = self.positions[:, None, :, None]
            seen = places <= own
            if window:
                seen &= places >= (own - own % window if chunked else own - window + 1)
            self.masks[key] = seen
        return self.masks[key]


@dataclass(frozen=True)
class Node:
    """A node of a graph.

    Attributes:
        attributes: its attributes.
        matrices: its weights in place of tiles, [rows, columns] each; of experts one behind the
            other.
        pool: name of the pool that it reads; empty: none.
    """

    attributes: Mapping[str, Any]
    matrices: tuple[Tensor, ...] = ()
    pool: str = ""

    @staticmethod
    def product(x: Tensor, matrix: Tensor) -> Tensor:
        """Returns x times the transposed matrix, in float32.

        Columns of the matrix behind the width of x fill units of its tiles.
        """
        return functional.linear(x.to(matrix.dtype), matrix[:, : x.shape[-1]]).float()


Given = list[Any]
"""What a node reads, tensors; None for what it leaves out."""
Operator = Callable[[Node, TextPass, Given], Any]
