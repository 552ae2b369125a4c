"""Two forms of attention to the cache and to the new rows of a call.

Both read the cache in place, without a copy, and get the mask as a bias from the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
from onnx import TensorProto

from edgespec.bundle.caches import rows_symbol
from edgespec.bundle.sublayers import bias_input, mask_input, window_of
from edgespec.export.components.graph import GraphBuilder, Input
from edgespec.export.components.texts import Texts
from edgespec.models import Attention

FLOAT = TensorProto.FLOAT
INT32, INT64 = TensorProto.INT32, TensorProto.INT64  # WebGPU can concatenate only int32


class Kept(NamedTuple):
    """Keys or values, as the cache holds them.

    Attributes:
        numbers: [KV, rows, hd] float32; with scales they are whole numbers.
        scales: [KV, rows, 1], what the numbers of a row are multiples of; None: of 1.
    """

    numbers: str
    scales: str | None


KeysValues = tuple[Kept, Kept]
"""Keys and values."""


class Known(NamedTuple):
    """Keys and values that attention reads.

    Attributes:
        past: those of the cache.
        new: those of the call's own rows.
        layer: the layer that computes them.
    """

    past: KeysValues
    new: KeysValues
    layer: Attention


@dataclass(frozen=True)
class Heads:
    """Number of key heads, and of query heads that share each of them."""

    keys: int
    group: int

    @classmethod
    def of(cls, attention: Attention) -> Heads:
        """Returns the numbers of a layer's heads."""
        return cls(attention.kv_heads, attention.heads // attention.kv_heads)


class AttentionForm(Protocol):
    """A form of attention for all layers of a stage, which declares the inputs that they share."""

    def __init__(self, graph: GraphBuilder, declare: Input, texts: Texts) -> None: ...

    def mix(
        self, q: str, past: KeysValues, new: KeysValues, layer: Attention, sinks: str | None
    ) -> str:
        """Emits attention for one layer.

        Args:
            q: [KV, G * S, hd], queries; their products with keys are scores, or with a limit of
                scores, which is applied here, scores divided by it.
            past: keys and values of the cache, of C rows; C_512 instead of C and so on
                where a window limits the rows that are kept (`edgespec.bundle.caches`).
            new: keys and values of the call's own S rows.
            layer: description of the attention.
            sinks: [KV, G * S, 1], scores that take part in the softmax and have no value; None:
                there are none.

        Returns:
            [KV, G * S, hd], the values weighted by attention.
        """


class SplitAttention:
    """Attention with one softmax over the scores of cache and new rows.

    Two products with the values are added. This is the least work, but where the sum is split
    depends on the cache, so the last bits of a row's result depend on the call that computes it. It
    is for drafts, and for devices that are less precise anyway.
    """

    def __init__(self, graph: GraphBuilder, declare: Input, texts: Texts) -> None:
        self._graph, self._declare, self._texts = graph, declare, texts
        self._bias = cache(self._bias_of)

    def mix(
        self, q: str, past: KeysValues, new: KeysValues, layer: Attention, sinks: str | None
    ) -> str:
        """See `AttentionForm`."""
        g = self._graph
        texts = self._texts
        both = (_scores(g, texts, q, keys[0]) for keys in (past, new))
        scores = g.op("Concat", *both, axis=-1)
        scores = limited(g, scores, layer.softcap)
        scores = g.op("Add", scores, self._bias(layer.mask, Heads.of(layer)))
        # Split sizes come from the host: sizes computed inside a graph were wrong on some GPUs.
        lengths = self._declare(mask_input("lengths", layer.mask), INT64, 2)
        old, own = _shares(g, scores, lengths, sinks)
        return g.op("Add", _weighted(g, texts, old, past[1]), _weighted(g, texts, own, new[1]))

    def _bias_of(self, mask: str, heads: Heads) -> str:
        """Returns the bias of a mask for all query heads of a group: [T, 1, G * L, C + L]."""
        columns = f"{rows_symbol(window_of(mask))}+{self._texts.rows}"
        return _bias(self._graph, self._declare, self._texts, mask, columns, heads)


class OrderedAttention:
    """Attention whose summation order depends only on positions.

    So a row's result has the same bits in every call: alone, in a chunk of a prompt, or in any
    tree. Each row has N columns for its last positions, whether they are in the cache or in the
    call, followed by the C columns of the cache, in which only older positions count:

    * `window_rows` [W]: the last rows of the cache. Together with the S new rows they are the
      W + S *near* rows, in which a row's ancestors are ordered by their positions.
    * `recent_rows` [S, N]: for each column, the near row whose score it gets.
    * `recent_columns` [S, W + S]: the inverse: for each near row, the column with its attention
      weight. For near rows that must not be seen, it is a column that `attention_bias` masks.

    This assumes that a matrix product adds from the first column to the last, whatever its other
    rows are. It is tested on each machine (`runtime/execution/exactness.py`).
    """

    def __init__(self, graph: GraphBuilder, declare: Input, texts: Texts) -> None:
        self._graph, self._declare, self._texts = graph, declare, texts
        self._bias, self._for_scores = cache(self._bias_of), cache(self._repeated)

    def mix(
        self, q: str, past: KeysValues, new: KeysValues, layer: Attention, sinks: str | None
    ) -> str:
        """See `AttentionForm`."""
        g, mask, heads = self._graph, layer.mask, Heads.of(layer)
        texts, t, by_row = self._texts, self._texts.dims, (*self._texts.dims, self._texts.rows)
        last = self._declare(mask_input("window_rows", mask), INT64, *t, "W")
        # The cache's last rows and the new ones, W + L of them.
        keys, values = (
            _near(g, texts, old, last, own, layer) for old, own in zip(past, new, strict=True)
        )
        old = _scores(g, texts, q, past[0])
        rows = self._for_scores(self._declare("recent_rows", INT32, *by_row, "N"), heads)
        recent = g.op("GatherElements", _scores(g, texts, q, keys), rows, axis=-1)
        scores = limited(g, g.op("Concat", recent, old, axis=-1), layer.softcap)
        scores = g.op("Add", scores, self._bias(mask, heads))
        lengths = self._declare(mask_input("lengths", mask), INT64, 2)
        recent, old = _shares(g, scores, lengths, sinks)
        columns = self._declare("recent_columns", INT32, *by_row, f"W+{texts.rows}")
        near = g.op("GatherElements", recent, self._for_scores(columns, heads), axis=-1)
        return g.op("Add", _weighted(g, texts, old, past[1]), _weighted(g, texts, near, values))

    def _bias_of(self, mask: str, heads: Heads) -> str:
        """Returns the bias of a mask for all query heads of a group: [T, 1, G * L, N + C]."""
        columns = f"N+{rows_symbol(window_of(mask))}"
        return _bias(self._graph, self._declare, self._texts, mask, columns, heads)

    def _repeated(self, indices: str, heads: Heads) -> str:
        """Repeats indices of rows for all heads: [T, KV, G * L, …]."""
        texts = self._texts
        by_head = texts.by_head(_for_group(self._graph, texts, indices, heads))
        return self._graph.op("Concat", *[by_head] * heads.keys, axis=len(texts.dims))


def limited(graph: GraphBuilder, divided: str, softcap: float | None) -> str:
    """Limits numbers that are already divided by the limit; without a limit, returns them."""
    if softcap is None:
        return divided
    return graph.op("Mul", graph.op("Tanh", divided), graph.constant(softcap, np.float32))


def _bias(
    graph: GraphBuilder, declare: Input, texts: Texts, mask: str, columns: str, heads: Heads
) -> str:
    bias = declare(bias_input(mask), FLOAT, *texts.dims, texts.rows, columns)
    bias = _for_group(graph, texts, bias, heads)
    return texts.by_head(bias) if texts.dims else bias


def _for_group(graph: GraphBuilder, texts: Texts, rows: str, heads: Heads) -> str:
    """Repeats rows [T, L, …] for each query head that shares keys: [T, G * L, …]."""
    if heads.group == 1:
        return rows
    return graph.op("Concat", *[rows] * heads.group, axis=len(texts.dims))


def _near(
    graph: GraphBuilder, texts: Texts, past: Kept, last: str, new: Kept, layer: Attention
) -> Kept:
    """Puts some rows of the cache before the new ones."""

    def joined(old: str, own: str, width: int) -> str:
        return graph.op("Concat", texts.window(old, last, layer.kv_heads, width), own, axis=-2)

    scales = joined(past.scales, new.scales, 1) if past.scales and new.scales else None
    return Kept(joined(past.numbers, new.numbers, layer.head_dim), scales)


def _scores(graph: GraphBuilder, texts: Texts, q: str, keys: Kept) -> str:
    """Computes attention scores: [T, KV, G * L, rows of keys]."""
    scores = graph.op("MatMul", q, texts.swapped(keys.numbers))
    return _scaled(graph, texts, scores, keys)


def _weighted(graph: GraphBuilder, texts: Texts, shares: str, values: Kept) -> str:
    """Adds up values by their shares [T, KV, G * L, rows]: [T, KV, G * L, hd]."""
    return graph.op("MatMul", _scaled(graph, texts, shares, values), values.numbers)


def _scaled(graph: GraphBuilder, texts: Texts, by_row: str, kept: Kept) -> str:
    """Multiplies [T, KV, G * L, rows] by the scales of rows: a cache is not widened by them."""
    if kept.scales is None:
        return by_row
    return graph.op("Mul", by_row, texts.swapped(kept.scales))


def _shares(graph: GraphBuilder, scores: str, lengths: str, sinks: str | None) -> list[str]:
    """Emits the softmax of scores, split by `lengths` into two parts.

    Sinks come first, where they are whatever the capacity of the cache is.
    """
    if sinks is None:
        return graph.multi_op(
            "Split", graph.op("Softmax", scores, axis=-1), lengths, outputs=2, axis=-1
        )
    shares = graph.op("Softmax", graph.op("Concat", sinks, scores, axis=-1), axis=-1)
    sizes = graph.op("Concat", graph.ints(1), lengths, axis=0)
    return graph.multi_op("Split", shares, sizes, outputs=3, axis=-1)[1:]
